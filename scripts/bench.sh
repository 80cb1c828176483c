#!/usr/bin/env bash
# bench.sh [--quick] [--rounds N] [--steps N] [--config NAME] [--peer PYTHON]: speed and memory of dtrain; with a Python
# that has torch 2.11.0, beside the PyTorch peer of scripts/peer. Prints a table, writes build/bench/TIME.json.
# docs/benchmarks.md says what is measured and how.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh
scripts/build.sh release dtrain dtrun dtrain_runtime
exec /usr/bin/python3 scripts/bench.py "$@"
