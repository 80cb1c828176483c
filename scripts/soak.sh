#!/usr/bin/env bash
# soak.sh CAMPAIGN [MINUTES] runs what takes too long for scripts/test.sh. MINUTES is how long the random campaigns go on
# (default 30); each prints its seed and what went wrong, and its status says whether something did.
#   kills        training jobs ended at random moments in random ways end in time and leave nothing behind
#   attack       another user attacks jobs from before they start, on one node, on two and under torchrun; they end as if left
#                alone (fifteen minutes; as root)
#   checkpoints  one run of 4000 steps, ended 30 times while it saves, under changing layouts, ends with the bits of a whole
#                one
#   storage      one passing error at each file call of a start, a line of metrics, a save and a resume: the run ends with the
#                bits of an undisturbed one, or with a status that restarts and then does (takes what it takes)
#   parity       300 random shapes (or as many as MINUTES allow) give the bits of one process on 2, 4 and 8 ranks, in one
#                go and resumed on other ranks, with every optimizer, dtype and instruction set
#   chaos        500 random faults in runs of random shapes, each of which goes on under another of 12 layouts and ends
#                with the bits of an undisturbed one (takes what it takes)
#   nodes        100 random faults in jobs of two nodes: ranks and launchers killed and stopped, a full disk, a cut network;
#                they go on, end with the bits of an undisturbed one and leave nothing (takes what it takes; as root)
#   mesh         every tensor, pipeline and 3D layout with every setting agrees with one rank in float64 (takes what it
#                takes)
#   memory       in a memory cgroup that ends a ddp run, full sharding trains the same model
#   mutations    defects planted in the library are noticed by the tests (takes what it takes)
#   waits        on the fake accelerator, each wait of one stream for another that is left out gives a race or another
#                result (takes what it takes)
#   alone        every file compiles without the others of its target (takes what it takes)
#   asan         every test under the address and undefined-behaviour sanitizers (takes what it takes)
#   fuzz         the parsers of checkpoints and tokenizers withstand a minute of clang's libFuzzer each
#   tokenizers   random tokenizer.json files give random texts the tokens of the package tokenizers (five minutes, or
#                MINUTES; DTRAIN_PEER_PYTHON names a Python that has it)
#   repeat       200 processes on 1, 2 and 4 threads and on 4 ranks that are threads compute the same bits (takes what it
#                takes)
#   scale        512 ranks that are no dtrain, then as many of dtrain as fit (at least 32), which compute the bits of one
#                (takes what it takes)
#   lowered      every test passes with all instruction sets lowered to AVX2 and to the x86-64 baseline, one after the
#                other (scripts/lowered.sh); prints the errors of each dtype on each (takes what it takes)
#   huggingface  24 random Llama, Mistral, Qwen2 and Qwen3 models and SmolLM2-135M-Instruct give transformers' numbers, layouts agree,
#                and transformers loads what is exported (takes what it takes); DTRAIN_PEER_PYTHON names a Python with transformers,
#                as scripts/get_smollm2.py says
#   fresh        README's commands in a minimal Debian 12, and the tests there as another user (an hour; as root)
#   all          these, one after the other
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export PYTHONPATH=$PWD/scripts  # runs.py

usage() {
  sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
  exit 2
}

build() {
  scripts/setup.sh --dev
  scripts/build.sh release all
}

kills() { build && /usr/bin/python3 scripts/soak/soak_chaos.py kills --minutes "$minutes"; }
# Status 77 says that this user cannot act as another one, which is no failure.
attack() { build && { /usr/bin/python3 scripts/soak/soak_attack.py || [ $? -eq 77 ]; }; }
checkpoints() { build && /usr/bin/python3 scripts/soak/soak_chaos.py checkpoints --faults 30; }
storage() { build && /usr/bin/python3 scripts/soak/soak_storage.py; }
parity() { build && /usr/bin/python3 scripts/soak/soak_parity.py ${given:+--minutes "$given"}; }
chaos() { build && /usr/bin/python3 scripts/soak/soak_chaos.py; }
# Status 77 says that this user cannot make networks, which is no failure.
nodes() { build && { /usr/bin/python3 scripts/soak/soak_nodes.py || [ $? -eq 77 ]; }; }
mesh() { build && build/release/bin/parity_tests "[.every-mesh]"; }
# Status 77 says that no cgroup can be made, which is no failure.
memory() { build && { /usr/bin/python3 scripts/soak/soak_memory.py || [ $? -eq 77 ]; }; }
mutations() { alone && /usr/bin/python3 scripts/soak/soak_mutations.py; }
waits() { build && build/release/bin/device_tests "[.waits]"; }
alone() { scripts/setup.sh --dev && scripts/build.sh dev all; }
asan() { scripts/test.sh --preset=asan; }

# Status 77 says that there is no clang, which is no failure.
fuzz() { build && { /usr/bin/python3 scripts/soak/soak_fuzz.py build/release || [ $? -eq 77 ]; }; }

# Status 77 says that the Python lacks the package, which is no failure.
tokenizers() {
  build && { "${DTRAIN_PEER_PYTHON:-/usr/bin/python3}" scripts/soak/soak_tokenizers.py build/release "${given:-5}" || [ $? -eq 77 ]; }
}

repeat() { build && /usr/bin/python3 scripts/soak/soak_repeat.py 200; }

scale() { build && /usr/bin/python3 scripts/soak/soak_scale.py; }

# Status 77 says that this Python lacks a package, which is no failure.
huggingface() { build && { "${DTRAIN_PEER_PYTHON:-/usr/bin/python3}" scripts/soak/soak_hugging_face.py || [ $? -eq 77 ]; }; }

# Status 77 says that this machine cannot make a minimal Debian, which is no failure.
fresh() { scripts/soak/soak_fresh.sh || [ $? -eq 77 ]; }

lowered() {
  local status=0 level
  for level in avx2 baseline; do
    scripts/lowered.sh $level scripts/test.sh || status=1
    scripts/lowered.sh $level build/release/bin/parity_tests "[.rounding]" || status=1
  done
  return $status
}

all() {
  local status=0 campaign
  for campaign in kills attack checkpoints storage parity chaos nodes mesh memory mutations waits alone asan fuzz tokenizers repeat scale lowered huggingface fresh; do
    $campaign || status=1
  done
  return $status
}

campaign=${1:-}
given=${2:-}
minutes=${given:-30}
[[ $minutes =~ ^[0-9]+(\.[0-9]+)?$ ]] || usage
case $campaign in
  kills | attack | checkpoints | storage | parity | chaos | nodes | mesh | memory | mutations | waits | alone | asan | fuzz | tokenizers | repeat | scale | lowered | huggingface | fresh | all) $campaign ;;
  *) usage ;;
esac
