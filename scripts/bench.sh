#!/usr/bin/env bash
# bench.sh [--quick] [--rounds N] [--steps N] [--config NAME] [--peer PYTHON] [--beside CHECKOUT]: speed and memory of
# dtrain; with a Python that has torch 2.11.0, beside the PyTorch peer of scripts/peer; with another checkout and its
# release build, beside that. Prints a table, writes build/bench/TIME.json.
# bench.sh cpu [--rounds N] [--only TEXT] [--peer PYTHON]: BDH with fused kernels, Llama and GPT-2 beside PyTorch, eager and
# compiled, on this CPU; what ranks of one machine wait and gain; starts.
# bench.sh plan [--steps N]: what dtrain plan predicts beside what runs measure.
# bench.sh compress [--rate RATE] [--only link|loss]: what compressed gradients save on a slow link, and cost in loss.
# bench.sh checkpoint [--rounds N] [--repeats N] [--dir DIR] [--peer PYTHON]: saving and loading, beside PyTorch's DCP.
# bench.sh data [--quick] [--rounds N] [--peer PYTHON]: preparing texts, beside Python's sentencepiece, and 2 GB of them.
# bench.sh overlap: how much of a delay of 20 ms in every collective call shows in a sharded step.
# bench.sh comm: times of all-reduces over shm and gloo.
# bench.sh generate: times of reading a prompt and of sampling a token.
# bench.sh bubble: how long the stages of a pipeline wait, beside what dtrain schedule prints.
# docs/guide/benchmarks.md says what is measured and how.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh
case ${1:-} in
  overlap | comm | bubble)
    scripts/build.sh release dist_tests
    exec build/release/bin/dist_tests "[.bench-$1]"
    ;;
  generate)
    scripts/build.sh release unit_tests
    exec build/release/bin/unit_tests "[.bench-generate]"
    ;;
esac
scripts/build.sh release dtrain dtrun dtrain_runtime rank_stub
program=scripts/bench/bench.py
case ${1:-} in
  checkpoint)
    program=scripts/bench/bench_checkpoint.py
    shift
    ;;
  data)
    scripts/build.sh release dtrain_sentencepiece
    program=scripts/bench/bench_data.py
    shift
    ;;
  compress)
    program=scripts/bench/bench_compress.py
    shift
    ;;
  plan)
    program=scripts/bench/bench_plan.py
    shift
    ;;
  cpu)
    scripts/build.sh release unit_tests dist_tests
    program=scripts/bench/bench_cpu.py
    shift
    ;;
esac
export PYTHONPATH=$PWD/scripts  # runs.py
exec /usr/bin/python3 "$program" "$@"
