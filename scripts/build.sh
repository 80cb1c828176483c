#!/usr/bin/env bash
# build.sh PRESET [TARGET...]: configures and builds quietly; without targets, everything. The compiler's output goes to
# build/PRESET.log and is shown if it failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset=${1:?usage: scripts/build.sh release|dev|asan [TARGET...]}
shift

mkdir -p build
log=build/$preset.log
exec 9>"build/$preset.lock"
flock 9  # two builds in one folder would spoil each other

build() {
  # Once configured, the build itself sees when to configure again.
  [ -f "build/$preset/build.ninja" ] || cmake --preset "$preset" || return
  cmake --build --preset "$preset" --parallel "$(nproc)" ${1:+--target "$@"}
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
