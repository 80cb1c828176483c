#!/usr/bin/env bash
# test.sh [CTEST-ARGUMENT...]: installs what tests need, builds, runs every test (or those that ctest's arguments choose, as
# -L unit or -R dtrun) and ends with the line "N passed, N failed". The status is 0 only if tests ran, none failed and none
# was skipped for a reason that tests/allowed_skips.txt does not allow; with CI=true in the environment it allows fewer.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset=release
if [[ ${1:-} == --preset=* ]]; then
  preset=${1#--preset=}
  shift
fi

scripts/setup.sh --dev
scripts/build.sh "$preset" all

results=$PWD/build/$preset-tests.xml
rm -f "$results"
# ctest's own status says nothing that the results do not; a ctest that dies leaves none, which is a failure below.
# Two slots are a core's test; the last two are for tests that wait (tests/CMakeLists.txt).
ctest --test-dir "build/$preset" --parallel $((2 * $(nproc) + 2)) --output-on-failure --test-output-size-passed 65536 \
  --output-junit "$results" "$@" || true
exec /usr/bin/python3 scripts/test_summary.py "$results"
