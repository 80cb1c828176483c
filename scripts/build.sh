#!/usr/bin/env bash
# build.sh [PRESET] [TARGET...]: configures and builds quietly. PRESET is release (the default), dev or asan; without targets,
# all that is installed, "all" with the tests. The compiler's output goes to build/PRESET.log and is shown if it failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset=release
if [[ ${1:-} =~ ^(release|dev|asan)$ ]]; then
  preset=$1
  shift
fi
[ $# -gt 0 ] || set -- installed_parts

mkdir -p build
log=build/$preset.log
exec 9>"build/$preset.lock"
flock 9  # two builds in one folder would spoil each other

# What the configuration looks for, in its present versions. A plugin whose library is installed later is built then.
dependencies() {
  awk '!/^#/ && NF {print $1}' third_party/debian.txt third_party/debian-dev.txt |
    xargs dpkg-query -W -f='${Package} ${Version} ${Status}\n' 2>/dev/null || true
  cat .deps/libtorch/*-from.txt 2>/dev/null || true
  command -v nvcc "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" || true
}

configure() {
  local found=build/$preset/dependencies.txt
  if [ -f "build/$preset/build.ninja" ] && dependencies | cmp -s - "$found"; then return; fi
  cmake --preset "$preset" -U 'DTRAIN_*_INCLUDE' -U 'DTRAIN_*_LIBRARY' -U DTRAIN_SENTENCEPIECE_TRAINER -U DTRAIN_NVCC || return
  dependencies >"$found"
}

build() {
  configure || return
  cmake --build --preset "$preset" --parallel "$(nproc)" --target "$@"
}

begin=$SECONDS
if ! build "$@" >"$log" 2>&1 9>&-; then
  tail -n 60 "$log" >&2
  echo "build.sh: the $preset build failed; all of its output is in $log" >&2
  exit 1
fi
# The commit that programs name is looked up in every build, which is no work.
if grep -qE '\] (Building|Linking)' "$log"; then
  echo "build/$preset built in $((SECONDS - begin)) s"
else
  echo "build/$preset is up to date"
fi
