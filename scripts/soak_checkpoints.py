"""Kills one run again and again while it saves, each time on another number of ranks, and goes on with it; at the end it
must have the losses and weights of a run that was never stopped. See scripts/soak.sh."""

import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

from runs import BIN, TEXT, launched, outcome, seeded, steps_of

LIMIT = 120  # seconds for a start and for an end
STEPS = 4000
MODEL = ["--levels", "2", "--width", "32", "--heads", "2", "--neurons", "64", "--seq-len", "32", "--global-batch", "4",
         "--microbatch", "1", "--lr", "3e-3", "--threads", "1", "--dropout", "0.1", "--log-every", "0", "--steps", STEPS,
         "--data", TEXT]


def command(folder, ranks, *flags):
    return launched(ranks, "--strategy", "ddp" if ranks > 1 else "single", *MODEL, "--run-dir", folder, *flags)


def children(pid):
    try:
        text = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [child for word in text.split() for child in [int(word), *children(int(word))]]


def saving(folder):
    """Returns whether a save is under way."""
    checkpoints = folder / "checkpoints"
    try:
        return any(".tmp-" in name for name in os.listdir(checkpoints))
    except OSError:
        return False


def one_life(folder, ranks):
    """Starts the run and ends it at some moment of a save; whether it came to its end by itself before."""
    # Slow enough to be met at every stage of a save, or as fast as it goes.
    job = subprocess.Popen(command(folder, ranks, "--resume", "auto", "--checkpoint-every", "2",
                                   "--checkpoint-write-limit", random.choice(("0", "0.5", "3"))),
                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + LIMIT
    while not saving(folder) and job.poll() is None:
        if time.monotonic() > end:
            sys.exit("checkpoints: a start took too long")
    time.sleep(random.uniform(0, 1.5))
    how = random.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM))
    # A user sends SIGTERM to the process that he started.
    victim = job.pid if how == signal.SIGTERM else random.choice([job.pid, *children(job.pid)])
    try:
        os.kill(victim, how)
    except ProcessLookupError:
        pass
    error = job.communicate(timeout=LIMIT)[1]
    if "internal" in error or "error: unexpected" in error:
        sys.exit(f"checkpoints: {error}")
    return job.returncode == 0


def check_whole(folder):
    if not any((folder / "checkpoints").glob("step-*[0-9]/manifest.json")):
        return 0
    subprocess.run([BIN / "dtrain", "checkpoint", "verify", folder], check=True, stdout=subprocess.DEVNULL)
    return 1


def main(kills):
    seeded(f"checkpoints: {kills} kills")
    with tempfile.TemporaryDirectory(prefix="dtrain-soak-") as root:
        whole, parts = pathlib.Path(root) / "whole", pathlib.Path(root) / "parts"
        subprocess.run(command(whole, 1), check=True, stderr=subprocess.DEVNULL)
        killed = found = 0
        while killed < kills and not one_life(parts, random.choice((1, 2, 2, 4))):
            killed += 1
            found += check_whole(parts)
        done = max((line["step"] for line in steps_of(parts)), default=0)
        subprocess.run(command(parts, 2, "--resume", "auto", "--checkpoint-every", "50"), check=True,
                       stderr=subprocess.DEVNULL)
        same, same_weights = (found == expected for found, expected in zip(outcome(parts), outcome(whole)))
    print(f"checkpoints: {killed} kills up to step {done}, after {found} of them a whole checkpoint; losses "
          f"{'equal' if same else 'DIFFER'}, weights {'equal' if same_weights else 'DIFFER'}")
    sys.exit(0 if same and same_weights else 1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
