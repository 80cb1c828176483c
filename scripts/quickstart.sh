#!/usr/bin/env bash
# quickstart.sh [--steps N] [TEXT]: from a fresh checkout to a trained model. Installs and builds what is missing, turns
# TEXT (by default the King James Bible of Debian's bible-kjv) into a token file, trains the mini model on two ranks,
# and shows how well it predicts text it has not seen, and 200 bytes of its own. Each call makes its own run folder.
set -euo pipefail


# Below this the last twentieth, which is kept for validation, has no sequence of mini.json's 128 tokens.
least_bytes=2600

usage() {
  cat <<END
usage: scripts/quickstart.sh [--steps N] [TEXT]
Builds dtrain where it is not built, trains a small model on a text with two ranks, and lets it write 200 bytes.
  --steps N  optimizer steps (default: 800)
  TEXT       text file of at least $least_bytes bytes (default: the King James Bible)
END
}

refuse_usage() {
  usage >&2
  exit 2
}

# The text is looked at before anything is built.
check_text() {
  if [ ! -f "$text" ] || [ ! -r "$text" ]; then
    echo "quickstart.sh: cannot read $text; name a text file" >&2
    exit 3
  fi
  local bytes
  bytes=$(stat -L -c %s -- "$text")
  if [ "$bytes" -lt "$least_bytes" ]; then
    echo "quickstart.sh: $text has $bytes bytes, too few to train and validate on; name a text of at least $least_bytes" >&2
    exit 3
  fi
}

steps=800
text=
while [ $# -gt 0 ]; do
  case $1 in
    --steps) steps=${2:-}; [[ $steps =~ ^[1-9][0-9]*$ ]] || refuse_usage; shift 2 ;;
    -h | --help) usage; exit 0 ;;
    -*) refuse_usage ;;
    *) [ -z "$text" ] || refuse_usage; text=$(realpath -m -- "$1"); shift ;;
  esac
done
[ -z "$text" ] || check_text

cd "$(dirname "${BASH_SOURCE[0]}")/.."
bin=build/release/bin
heading() { printf '\n== %s\n' "$*"; }

# A folder of this call's own: mkdir fails where there is one already.
new_run_folder() {
  local number=1
  mkdir -p runs
  until mkdir "runs/quickstart-$number" 2>/dev/null; do
    number=$((number + 1))
    [ "$number" -lt 10000 ] || { echo "quickstart.sh: cannot make a folder in $PWD/runs" >&2; exit 2; }
  done
  echo "runs/quickstart-$number"
}

prepare_tokens() {
  local run=$1
  if [ -z "$text" ]; then
    text=$run/bible.txt
    bible -f gen1:1-rev22:21 >"$text"
  fi
  $bin/dtrain data prepare "$text" --output "$run/text.dtok"
}

# The first words of the text: where the model is to begin.
first_words() {
  /usr/bin/python3 -c '
import sys
print(" ".join(open(sys.argv[1], "rb").read(200).decode(errors="ignore").replace("\0", "").split()[:4])[:40])' "$1"
}

# Adds to mini.json the data, its last twentieth for validation, and an evaluation of all of that at the end. Each rank
# computes its half of a step at once, which is faster here than the single sequences that mini.json pins for the sake
# of eight ranks.
train() {
  local run=$1
  $bin/dtrun -n 2 -- $bin/dtrain --strategy ddp --config configs/experiments/mini.json --microbatch 4 \
    --data "$run/text.dtok" --val-fraction 0.05 --eval-sequences all --log-every 50 \
    --steps "$steps" --run-dir "$run"
}

# The run's own configuration says which text to evaluate on.
print_losses() {
  local run=$1
  $bin/dtrain data baseline --config "$run/config.json" >"$run/baseline.json"
  /usr/bin/python3 - "$run" <<'PYTHON'
import json
import sys

run = sys.argv[1]
baseline = json.load(open(f"{run}/baseline.json"))
lines = [json.loads(line) for line in open(f"{run}/metrics.jsonl")]
end = lines[-1]
assert end["event"] == "end", end
first, last = end["train_loss_steps"]
assert [line["tokens"] for line in lines if line.get("event") == "eval"] == [baseline["targets"]], "other text was scored"
print(f"""nats per byte (lower is better)
  {f"training, mean of steps {first} to {last}":<38}{end['train_loss']:.3f}
  validation                            {end['val_loss']:.3f}
on the same {baseline['targets']:,} validation bytes
  a trigram model (sees two bytes)      {baseline['trigram']:.3f}
  a bigram model (sees one byte)        {baseline['bigram']:.3f}
training took {end['seconds']:.0f} s at {end['tokens_per_second']:,.0f} tokens/s""")
PYTHON
}

heading "set-up and build (the first time: some minutes)"
scripts/setup.sh
scripts/build.sh
run=$(new_run_folder)

heading "text to tokens"
prepare_tokens "$run"

heading "training: mini BDH, $steps steps, two ranks (ddp)"
train "$run"

heading "result"
print_losses "$run"

heading "the first words of the text, and 200 bytes by the trained model"
# One thread: the products of a single byte are too small to share.
$bin/dtrain generate --from "$run/final/model.safetensors" --prompt="$(first_words "$text")" --max-tokens 200 \
  --temperature 0.8 --threads 1
echo

heading "run folder: $run"
echo "config.json  metrics.jsonl  final/model.safetensors  checkpoints/step-$steps  text.dtok  baseline.json"
