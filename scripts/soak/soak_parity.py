"""Trains random small configurations on one process and on several under random layouts that promise its bits, in one
go and resumed from one layout to another, and compares every bit; see scripts/soak.sh."""

import argparse
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

from runs import TEXT, difference, launched, outcome

# The instruction sets of ATen and oneDNN; each gives bits of its own.
INSTRUCTION_SETS = ({}, {}, {"ATEN_CPU_CAPABILITY": "default"}, {"ATEN_CPU_CAPABILITY": "avx2"},
                    {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"})
LIMIT = 600  # seconds after which a run hangs; none needs more than a few


def random_settings():
    """Settings of a run, how many microbatches a step has, and the environment of its processes."""
    choose = random.choice
    microbatches = choose((2, 4, 8))
    settings = {
        "--layers": choose((1, 2, 3)), "--width": choose((7, 30, 31, 33, 64, random.randint(2, 80))),
        "--heads": random.randint(1, 4), "--neurons": 2 * random.randint(1, 60),
        "--vocab": choose((256, 257, random.randint(256, 400))), "--seq-len": random.randint(3, 40),
        "--microbatch": choose((1, 2, 3)), "--dropout": choose((0, 0.1, 0.5)), "--tie-layers": choose(("on", "off")),
        "--dtype": choose(("float32", "float32", "float32", "float64", "bfloat16", "float16")),
        "--optimizer": choose(("adamw", "adamw", "sgd")), "--weight-decay": choose((0, 0.1, 1)),
        "--steps": random.randint(4, 12), "--seed": random.randrange(2**31), "--lr": choose((1e-3, 1e-2)),
        "--grad-clip": choose((0, 0.1, 1)), "--schedule": choose(("constant", "cosine")),
        "--eval-sequences": choose((random.randint(1, 30), "all")), "--freeze": choose(("", "encoder", "embed.weight")),
        "--threads": choose((1, 2)) if microbatches == 2 else 1, "--log-every": 0, "--val-fraction": 0.2,
        "--data": TEXT}
    if settings["--tie-layers"] == "off" or not settings["--freeze"]:
        del settings["--freeze"]  # untied levels have other names
    if settings["--optimizer"] == "sgd":
        settings["--momentum"] = choose((0, 0.9))
    return settings, microbatches, choose(INSTRUCTION_SETS)


def random_layout(ranks):
    """Any data axis on so many ranks, as flags; settings without effect are among them. {disk} names a folder. What a
    resumed run is not told, it takes from the one before."""
    choose = random.choice
    offload = ["--offload", choose(("none", "none", "disk:{disk}"))]
    alone = [*offload, "--backend", "auto", "--shard-size", 0]
    if ranks == 1:
        return ["--strategy", "single", *alone]
    flags = list(choose((
        ("--strategy", "dp", "--local-ranks", ranks), ("--strategy", "ddp"), ("--strategy", "zero", "--zero-stage", 1),
        ("--strategy", choose(("zero", "deepspeed")), "--zero-stage", choose((2, 3))),
        ("--strategy", "fsdp", "--fsdp-sharding", choose(("full", "full", "grad-op", "none"))),
        ("--strategy", "fsdp", "--fsdp-sharding", "hybrid", "--shard-size", choose([n for n in (1, 2, 4, 8) if n <= ranks])))))
    if "dp" in flags:
        return [*flags, *alone]
    if "hybrid" not in flags:
        flags += ["--shard-size", 0]
    if "ddp" not in flags:
        flags += ["--wrap", choose(("block", "block", "none", f"size:{random.randint(1, 20000)}")),
                  "--accumulate", choose(("auto", "local")), "--backward-prefetch", choose(("pre", "post", "none")),
                  "--forward-prefetch", choose(("on", "off")), "--limit-gathers", random.randint(1, 4)]
    return [*flags, *offload, "--backend", choose(("gloo", "shm"))]


def random_legs(settings, microbatches):
    """Layouts that a run goes through, each with its number of ranks and the step at which it ends."""
    steps = settings["--steps"]
    # A schedule that falls depends on where it ends.
    is_resumed = settings["--schedule"] == "constant" and random.random() < 0.5
    ends = sorted(random.sample(range(1, steps), random.randint(1, 2))) + [steps] if is_resumed else [steps]
    counts = [n for n in (1, 2, 2, 2, 4, 4, 8) if n <= microbatches]
    legs = []
    for end in ends:
        ranks = random.choice(counts if is_resumed or random.random() < 0.2 else counts[1:])
        legs.append((ranks, random_layout(ranks), end))
    return legs


def train(settings, microbatches, environment, legs, folder):
    """The results of the run: compared keys of every step, its validation loss and the model file's bytes; or, with no
    bytes, why it failed."""
    for ranks, layout, end in legs:
        processes = ranks if "dp" not in layout else 1
        flags = [word for pair in {**settings, "--steps": end}.items() for word in pair]
        layout = [str(word).format(disk=folder.parent) for word in layout]
        resumed = ["--checkpoint-every", end, "--resume", "auto"] if len(legs) > 1 else []
        command = launched(processes, *layout, *resumed, "--grad-accum", microbatches // ranks, "--run-dir", folder, *flags)
        try:
            result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT, env={**os.environ, **environment})
        except subprocess.TimeoutExpired:
            return f"no end within {LIMIT} s", None
        if result.returncode != 0:
            return f"status {result.returncode}: {result.stderr[-2000:]}", None
    return outcome(folder)


def compare(settings, microbatches, environment, runs):
    """The runs, each a list of legs, whose outcome is not that of one process, with what is different."""
    with tempfile.TemporaryDirectory(prefix="dtrain-soak-") as folder:
        base = pathlib.Path(folder)
        whole = [(1, ["--strategy", "single"], settings["--steps"])]
        expected = train(settings, microbatches, environment, whole, base / "whole")
        if expected[1] is None:
            return [f"one process: {expected[0]}"]
        different = []
        for number, legs in enumerate(runs):
            problem = difference(train(settings, microbatches, environment, legs, base / str(number)), expected)
            if problem:
                told = "; ".join(f"{ranks} ranks to step {end}: {' '.join(map(str, layout))}" for ranks, layout, end in legs)
                different.append(f"{told}\n    {problem}")
        return different


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    limit = parser.add_mutually_exclusive_group()
    limit.add_argument("--shapes", type=int, default=300, metavar="N")
    limit.add_argument("--minutes", type=float, metavar="M", help="as many shapes as they allow")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), metavar="S")
    options = parser.parse_args()
    return campaign(options.shapes, options.minutes, options.seed)


def campaign(shapes, minutes, seed):
    """The status: 0 if no shape differed."""
    random.seed(seed)
    print(f"parity: {f'{minutes:g} minutes' if minutes else f'{shapes} shapes'}, seed {seed}", flush=True)
    begin, done, runs, bad = time.monotonic(), 0, 0, 0
    while time.monotonic() < begin + 60 * minutes if minutes else done < shapes:
        settings, microbatches, environment = random_settings()
        chosen = [random_legs(settings, microbatches) for _ in range(random.randint(1, 2))]
        problems = compare(settings, microbatches, environment, chosen)
        done, runs = done + 1, runs + len(chosen)
        if problems:
            bad += 1
            flags = " ".join(f"{key} {value}" for key, value in settings.items())
            print(f"{environment}, {microbatches} microbatches, {flags}\n  " + "\n  ".join(problems), flush=True)
    print(f"parity: {done} shapes, {runs} runs beside one process, {bad} shapes differed, {time.monotonic() - begin:.0f} s")
    return 0 if done and not bad else 1


if __name__ == "__main__":
    sys.exit(main())
