"""Lets each file call of a run fail once with a passing error: in the run folder, its checkpoints and the data, while it
starts, writes metrics, saves and resumes. It must end with the bits of an undisturbed run, or with a status with which
dtrun restarts it, and then do so. See scripts/soak.sh."""

import collections
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from runs import TEXT, launched, outcome

LIMIT = 300
CALLS = ("openat", "read", "pread64", "write", "fsync", "ftruncate", "truncate", "newfstatat", "mkdir", "rename", "unlink", "rmdir",
         "flock", "getdents64", "access", "close")
ERRORS = ("EIO", "ESTALE")
FOR_GOOD = {2, 3, 12}  # statuses with which dtrun does not restart
MODEL = ["--layers", "2", "--width", "32", "--heads", "2", "--neurons", "64", "--seq-len", "32", "--global-batch", "4",
         "--lr", "3e-3", "--threads", "1", "--log-every", "0", "--checkpoint-every", "2", "--resume", "auto"]


def command(folder, steps):
    data = folder.parent / "text.bin"
    return launched(1, *MODEL, "--data", data, "--steps", steps, "--run-dir", folder)


def run(words):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=LIMIT, check=False)


def begun(folder, steps):
    """A folder in which a run of so many steps has ended; 0: none."""
    shutil.rmtree(folder, ignore_errors=True)
    if steps > 0:
        run(command(folder, steps)).check_returncode()


def calls_of(folder, steps):
    """(call, number in its thread), for each call on a path of the run folder or on the data."""
    log = folder.parent / "calls.strace"
    run(["strace", "-f", "-y", "-o", log, "-e", "trace=" + ",".join(CALLS), *command(folder, steps)]).check_returncode()
    numbers, found = collections.Counter(), set()
    for line in log.read_text().splitlines():
        match = re.match(r"(\d+) +(\w+)\(", line)
        if not match:
            continue
        numbers[match.groups()] += 1
        if str(folder) in line or "text.bin" in line:
            found.add((match[2], numbers[match.groups()]))
    return sorted(found)


def fault(folder, steps, call, number, error):
    """What went wrong with a run one of whose calls fails; empty: nothing."""
    injection = f"inject={call}:error={error}:when={number}"
    tried = run(["strace", "-f", "--seccomp-bpf", "-o", os.devnull, "-e", "trace=" + call, "-e", injection, *command(folder, steps)])
    if tried.returncode == 0:
        return ""
    if tried.returncode in FOR_GOOD or tried.returncode < 0:
        return f"status {tried.returncode}: {tried.stderr[-400:]}"
    again = run(command(folder, steps))
    return "" if again.returncode == 0 else f"the restart: status {again.returncode}: {again.stderr[-400:]}"


def sweep(folder, before, steps, expected):
    begun(folder, before)
    failures = 0
    points = [(*point, error) for point in calls_of(folder, steps) for error in ERRORS]
    for call, number, error in points:
        begun(folder, before)
        wrong = fault(folder, steps, call, number, error)
        if not wrong and outcome(folder) != expected:
            wrong = "other bits"
        if wrong:
            failures += 1
            print(f"FAILED: {call} number {number} with {error}, from step {before}: {wrong}", flush=True)
    print(f"from step {before}: {len(points)} errors, {failures} failures", flush=True)
    return failures


def main():
    with tempfile.TemporaryDirectory(prefix="dtrain-storage-") as name:
        root = pathlib.Path(name)
        shutil.copy(TEXT, root / "text.bin")
        run(command(root / "whole", 4)).check_returncode()
        expected = outcome(root / "whole")
        return 1 if sum([sweep(root / "run", before, 4, expected) for before in (0, 2)]) else 0


if __name__ == "__main__":
    sys.exit(main())
