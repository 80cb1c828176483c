#!/usr/bin/env bash
# For a machine with a GPU, and without a network; P is a Python with torch 2.11.0 for CUDA:
# gpu_check.sh --python P --build-only [--deps FOLDER]: builds dtrain against the LibTorch of P.
# gpu_check.sh --python P [--only TEXT ...]: checks this build and measures it beside the PyTorch peer.
# Both take [--minutes 9] [--built FOLDER] [--out FOLDER], print a table, write gpu_check.json and, of what failed,
# gpu_check.log; the status is 0 where no check failed or was left out for lack of time.
# gpu_check.sh --pack FOLDER: collects the other libraries' headers for a machine that lacks them; FOLDER is then --deps.
# gpu_check.sh --device fake --built build/release: rehearses the checks on the fake accelerator.
# docs/internals/performance.md says what is checked and measured.
set -euo pipefail
python=python3
words=("$@")
for ((i = 0; i < $#; i++)); do
  case ${words[i]} in
    --python) python=${words[i + 1]-python3} ;;
    --python=*) python=${words[i]#--python=} ;;
  esac
done
if ! command -v "$python" >/dev/null; then
  echo "gpu_check.sh: error: --python $python: there is no such program" >&2
  exit 2
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
  echo "gpu_check.sh: error: --python $python: it is no Python 3.10 or newer" >&2
  exit 2
fi
scripts=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
export PYTHONPATH=$scripts${PYTHONPATH:+:$PYTHONPATH}  # runs.py
exec "$python" "$scripts/gpu_check/gpu_check.py" "$@"
