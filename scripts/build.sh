#!/usr/bin/env bash
# build.sh [PRESET] [TARGET...]: configures and builds, and says how far it is. PRESET is release (the default), dev or asan.
# TARGET is "programs" (the default: dtrain, dtrun, and the plugin for GPUs after scripts/setup.sh --cuda), dtrain_cuda or
# dtrain_mpi (a plugin), "installed_parts" (all of these) or "all" (the tests as well). The compiler's output goes to
# build/PRESET.log and is shown if it failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset=release
if [[ ${1:-} =~ ^(release|dev|asan)$ ]]; then
  preset=$1
  shift
fi
[ $# -gt 0 ] || set -- programs

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

# How many steps are done of how many, from what Ninja logs: one line that stays current on a terminal, elsewhere one every 30 s.
tell_progress() {
  local step=30 form='%s\n' finished all minutes
  if [ -t 1 ]; then step=1 form='\r\e[K%s'; fi
  while sleep "$step" >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do
    read -r finished all < <(sed -nE 's|^\[([1-9][0-9]*)/([0-9]+)\].*|\1 \2|p' "$log" | tail -n 1) || continue
    minutes=$((((SECONDS - begin) * (all - finished) / finished + 59) / 60))
    # shellcheck disable=SC2059  # the form is one of the two above
    printf "$form" "build.sh: $finished of $all steps done, about $minutes min left"
  done
}

begin=$SECONDS
: >"$log"
tell_progress 9>&- &
progress=$!
trap 'kill "$progress" 2>/dev/null || true' EXIT
status=0
build "$@" >"$log" 2>&1 9>&- || status=$?
kill "$progress"
wait "$progress" 2>/dev/null || true
if [ -t 1 ]; then printf '\r\e[K'; fi
if [ "$status" != 0 ]; then
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
