"""Saving and loading beside PyTorch's distributed checkpoint: the part of scripts/bench.sh behind the word checkpoint.

The 25m model with AdamW state (304 MB) on 2 ranks, on the same disk, in turns. The peer shards its state over the
ranks (FSDP2) and each of them loads its half; dtrain's ranks each hold all of it, write half and load all. Both sync
their files; dtrain also writes and, before it loads, verifies checksums of every byte.
"""

import argparse
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from bench import OUTPUT, machine, prepare, run, turns
from runs import BIN, ROOT, launched, metrics_of

LIMIT = 300  # seconds for any wait
SHORT = ["--config", "configs/experiments/25m.json", "--strategy", "ddp", "--seq-len", "16", "--global-batch", "0",
         "--microbatch", "1", "--grad-accum", "1", "--threads", "1", "--warmup-steps", "0", "--log-every", "0",
         "--val-fraction", "0"]


def command(folder, *flags):
    return launched(2, *SHORT, "--data", OUTPUT / "text.dtok", "--run-dir", folder, *flags)


def events(folder, name):
    return [line for line in metrics_of(folder) if line.get("event") == name]


def wait_for(condition, process):
    end = time.monotonic() + LIMIT
    while not condition():
        time.sleep(0.02)
        if time.monotonic() > end or process.poll() is not None:
            sys.exit("bench: the run ended or hung")


def blocking_saves(folder, repeats):
    """SIGUSR2 without --checkpoint-every: training waits until the checkpoint stands."""
    metrics = pathlib.Path(folder) / "metrics.jsonl"
    process = subprocess.Popen(command(folder, "--steps", "1000000"), stderr=subprocess.DEVNULL, cwd=ROOT)
    try:
        wait_for(lambda: metrics.exists() and '"loss"' in metrics.read_text(), process)
        for count in range(1, repeats + 1):
            process.send_signal(signal.SIGUSR2)
            wait_for(lambda: len(events(folder, "checkpoint")) >= count, process)
    finally:
        process.terminate()
        process.wait()
    return [event["seconds"] for event in events(folder, "checkpoint")[:repeats]]


def loads(folder, repeats):
    for _ in range(repeats):
        step = events(folder, "checkpoint")[-1]["step"] + 1
        run(command(folder, "--resume", "auto", "--steps", step, "--checkpoint-every", "1000000"))
    return [event["seconds"] for event in events(folder, "resume")[-repeats:]]


def saves_beside_training(folder, repeats):
    run(command(folder, "--steps", 4 * repeats + 3, "--checkpoint-every", "4"))
    found = events(folder, "checkpoint")[:repeats]
    return [event["stall_seconds"] for event in found], [event["seconds"] for event in found]


def dtrain_round(scratch, repeats):
    stalls, totals = saves_beside_training(scratch / "beside", repeats)
    return {"save": blocking_saves(scratch / "blocking", repeats), "load": loads(scratch / "blocking", repeats),
            "stall": stalls, "total": totals}


def peer_round(scratch, repeats, python):
    output, _ = run([python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                     ROOT / "scripts/peer/checkpoint_peer.py", "--dir", scratch / "peer", "--repeats", repeats])
    found = json.loads(output.splitlines()[-1])
    return {name: [found[key]["median"]] for name, key in
            [("save", "save"), ("load", "load"), ("stall", "async_stall"), ("total", "async_total")]}


MEANING = {"save": "save, training waits for all of it", "stall": "save beside training: training stands still",
           "total": "save beside training: from begin to commit", "load": "find, verify and load"}


def main():
    parser = argparse.ArgumentParser(prog="scripts/bench.sh checkpoint", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5, help="repetitions of each measurement in a round")
    parser.add_argument("--dir", help="folder to write to [build/bench]")
    parser.add_argument("--peer", metavar="PYTHON", help="a Python with torch 2.11.0")
    options = parser.parse_args()
    run([BIN / "dtrain", "data", "prepare", prepare(options.peer), "--output", OUTPUT / "text.dtok", "--overwrite"])
    found = {"dtrain": {name: [] for name in MEANING}, "peer": {name: [] for name in MEANING}}
    for program in turns("saves and loads", ["dtrain", "peer"] if options.peer else ["dtrain"], options.rounds):
        with tempfile.TemporaryDirectory(dir=options.dir or OUTPUT) as folder:
            os.sync()
            scratch = pathlib.Path(folder)
            result = (dtrain_round(scratch, options.repeats) if program == "dtrain" else
                      peer_round(scratch, options.repeats, options.peer))
        for name, values in result.items():
            found[program][name].append(statistics.median(values))
    about = machine()
    print(f"{about['cpu']}, {about['cores']} cores; 25m with AdamW on 2 ranks, 304 MB; medians of {options.rounds} rounds "
          f"of {options.repeats}\n\n{'':46}{'dtrain':>10}{'DCP':>10}{'ratio':>8}")
    for name, text in MEANING.items():
        own = statistics.median(found["dtrain"][name])
        line = f"{text:46}{own:>8.3f} s"
        if options.peer:
            peer = statistics.median(found["peer"][name])
            ratio = statistics.median(a / b for a, b in zip(found["dtrain"][name], found["peer"][name]))
            line += f"{peer:>8.3f} s{ratio:>8.2f}"
        print(line)
    print(json.dumps(found), file=sys.stderr)


if __name__ == "__main__":
    main()
