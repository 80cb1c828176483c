"""Trains random small configurations on one process and on several under random data axes, and compares every bit;
see scripts/soak.sh."""

import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BIN = ROOT / "build" / "release" / "bin"
COMPARED = ("step", "loss", "grad_norm", "learning_rate", "tokens", "samples", "val_loss")


def random_settings():
    """Settings of a run, and how many microbatches a step has."""
    choose = random.choice
    microbatches = choose((2, 4, 8))
    settings = {
        "--levels": choose((1, 2, 3)), "--width": choose((16, 24, 64)), "--heads": choose((1, 2, 3)),
        "--neurons": 2 * random.randint(4, 80), "--seq-len": random.randint(3, 48),
        "--microbatch": choose((1, 2, 3)), "--dropout": choose((0, 0.1, 0.5)), "--tie-levels": choose(("on", "off")),
        "--dtype": choose(("float32", "float32", "float64", "bfloat16", "float16")), "--steps": random.randint(2, 12), "--seed": random.randrange(2**31),
        "--lr": choose((1e-3, 1e-2)), "--grad-clip": choose((0, 0.1, 1)), "--schedule": choose(("constant", "cosine")),
        "--eval-sequences": random.choice((random.randint(1, 30), "all")), "--freeze": choose(("", "encoder", "embed.weight")),
        "--threads": 1, "--log-every": 0, "--val-fraction": 0.2, "--data": ROOT / "tests/golden/text.bin"}
    if settings["--tie-levels"] == "off" or not settings["--freeze"]:
        del settings["--freeze"]  # untied levels have other names
    return settings, microbatches


def random_layout(ranks):
    """Any data axis on so many ranks, as flags; settings without effect are among them."""
    choose = random.choice
    flags = list(choose((
        ("--strategy", "ddp"), ("--strategy", "zero", "--zero-stage", 1),
        ("--strategy", choose(("zero", "deepspeed")), "--zero-stage", choose((2, 3))),
        ("--strategy", "fsdp", "--fsdp-sharding", choose(("full", "full", "grad-op", "none"))),
        ("--strategy", "fsdp", "--fsdp-sharding", "hybrid", "--shard-size", choose([n for n in (1, 2, 4, 8) if n <= ranks])))))
    if "fsdp" in flags or "zero" in flags:
        flags += ["--wrap", choose(("block", "block", "none", f"size:{random.randint(1, 20000)}")),
                  "--accumulate", choose(("auto", "local")), "--backward-prefetch", choose(("pre", "post", "none")),
                  "--forward-prefetch", choose(("on", "off")), "--limit-gathers", random.randint(1, 4)]
    return [*flags, "--backend", choose(("gloo", "shm"))]


def train(settings, ranks, accumulation, layout, folder):
    """What the run computed: compared keys of every line of metrics, and the model file's bytes."""
    launcher = [BIN / "dtrun", "-n", ranks, "--"] if ranks > 1 else []
    flags = [word for pair in settings.items() for word in pair]
    command = [*launcher, BIN / "dtrain", *layout, "--grad-accum", accumulation, "--run-dir", folder, *flags]
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        return f"status {result.returncode}: {result.stderr[-2000:]}", None
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    numbers = [{key: repr(line[key]) for key in COMPARED if key in line} for line in lines]
    return numbers, (folder / "final" / "model.safetensors").read_bytes()


def compare(settings, microbatches):
    """The layouts that differ from one process."""
    with tempfile.TemporaryDirectory(prefix="dtrain-soak-") as folder:
        base = pathlib.Path(folder)
        expected = train(settings, 1, microbatches, ["--strategy", "single"], base / "1")
        if expected[1] is None:
            return [f"one process: {expected[0]}"]
        different = []
        for ranks in (2, 4, 8):
            if ranks <= microbatches and random.random() < 0.6:
                layout = random_layout(ranks)
                found = train(settings, ranks, microbatches // ranks, layout, base / str(ranks))
                if found != expected:
                    different.append(f"{ranks} ranks, {' '.join(map(str, layout))}: " + (found[0] if found[1] is None else "other bits"))
        return different


def main(minutes):
    seed = random.randrange(2**32)
    random.seed(seed)
    print(f"parity: {minutes:g} minutes, seed {seed}", flush=True)
    end, runs, bad = time.monotonic() + 60 * minutes, 0, 0
    while time.monotonic() < end:
        settings, microbatches = random_settings()
        problems = compare(settings, microbatches)
        runs += 1
        if problems:
            bad += 1
            flags = " ".join(f"{key} {value}" for key, value in settings.items())
            print(f"{microbatches} microbatches, {flags}\n  " + "\n  ".join(problems), flush=True)
    print(f"parity: {runs} configurations, {bad} differed")
    return 0 if runs and not bad else 1


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
