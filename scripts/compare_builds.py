"""Trains a fixed set of runs with this build and with the build of another checkout, and compares every bit of their
steps and final models; then goes on with each of the other build's runs. See docs/internals/testing.md.

For changes that must not change results: compare with a checkout of the commit before them."""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

from runs import ROOT, TEXT, difference, launched, outcome

MICROBATCHES = 4
STEPS = 6
MODEL = ("--levels", 4, "--width", 30, "--heads", 2, "--neurons", 40, "--seq-len", 24, "--microbatch", 2, "--dropout", 0.1,
         "--lr", 1e-2, "--beta2", 0.999, "--schedule", "constant", "--warmup-steps", 0, "--min-lr", 0, "--grad-clip", 0.5,
         "--threads", 1, "--log-every", 0, "--val-fraction", 0.1, "--eval-sequences", 9, "--steps", STEPS, "--data", TEXT)
# Name -> processes, data-parallel ranks, flags.
LAYOUTS = {
    "single": (1, 1, "--strategy single"),
    "ddp": (2, 2, "--strategy ddp"),
    "zero 1": (2, 2, "--strategy zero --zero-stage 1"),
    "zero 2": (2, 2, "--strategy zero --zero-stage 2"),
    "zero 3": (2, 2, "--strategy zero --zero-stage 3"),
    "fsdp": (2, 2, "--strategy fsdp"),
    "fsdp, 4 ranks": (4, 4, "--strategy fsdp --fsdp-sharding grad-op"),
    "fsdp hybrid": (4, 4, "--strategy fsdp --fsdp-sharding hybrid --shard-size 2"),
    "from disk": (2, 2, "--strategy fsdp --offload disk:{disk}"),
    "tp": (2, 1, "--strategy tp"),
    "tp, split vocabulary": (2, 1, "--strategy tp --tp-vocab on"),
    "tp inside heads": (4, 1, "--strategy tp"),
    "pp gpipe": (2, 1, "--strategy pp --schedule-pp gpipe"),
    "pp 1f1b": (2, 1, "--strategy pp"),
    "pp interleaved": (2, 1, "--strategy pp --schedule-pp interleaved:2"),
    "3d": (8, 2, "--strategy 3d --pp 2 --tp 2 --dp 2 --data-axis fsdp"),
    "dp": (1, 2, "--strategy dp --local-ranks 2"),
    "mp": (1, 1, "--strategy mp --local-ranks 2"),
}
SETTINGS = {
    "float32": "--tie-levels on",
    "float64, untied, recomputed": "--dtype float64 --tie-levels off --recompute level --optimizer sgd --momentum 0.9",
    "bfloat16": "--dtype bfloat16 --schedule cosine --decay-steps 20",
}


def command(checkout, layout, settings, folder, *more):
    processes, ranks, flags = LAYOUTS[layout]
    return launched(processes, *MODEL, *SETTINGS[settings].split(), *flags.format(disk=folder.parent).split(),
                    "--grad-accum", MICROBATCHES // ranks, "--run-dir", folder, *more, folder=checkout / "build" / "release" / "bin")


def train(*arguments):
    """The results of the run, or no bytes and why it failed."""
    result = subprocess.run(command(*arguments), capture_output=True, text=True, check=False)
    folder = arguments[3]
    return outcome(folder) if result.returncode == 0 else (f"status {result.returncode}: {result.stderr[-1000:]}", None)


def compare(other, layout, settings, base):
    """Describes the difference between the two builds, or nothing."""
    folders = {"this": base / "this", "other": base / "other"}
    found = train(ROOT, layout, settings, folders["this"])
    expected = train(other, layout, settings, folders["other"])
    if expected[1] is None:
        return f"the other build: {expected[0]}"
    problem = difference(found, expected)
    if problem:
        return problem
    # This build resumes its own run and the other build's.
    longer = ("--resume", "auto", "--steps", 2 * STEPS)
    found, expected = (train(ROOT, layout, settings, folder, *longer) for folder in folders.values())
    problem = difference(found, expected)
    return f"resumed from the other build's checkpoint: {problem}" if problem else None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=pathlib.Path, help="another checkout of dtrain with its release build")
    other = parser.parse_args().checkout.resolve()
    os.environ.pop("OMP_NUM_THREADS", None)
    bad = 0
    for layout in LAYOUTS:
        for settings in SETTINGS:
            with tempfile.TemporaryDirectory(prefix="dtrain-compare-") as folder:
                problem = compare(other, layout, settings, pathlib.Path(folder))
            print(f"{layout}, {settings}: {problem or 'equal'}", flush=True)
            bad += problem is not None
    print(f"compare: {len(LAYOUTS) * len(SETTINGS)} runs and resumes, {bad} differ")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
