"""Ends training jobs at random moments in random ways, and checks that nothing is left of any; see scripts/soak.sh."""

import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid

ROOT = pathlib.Path(__file__).resolve().parent.parent
BIN = ROOT / "build" / "release" / "bin"
ENDS_WITHIN = 10  # seconds; dtrun's own bound is 3
# Stopping dtrun itself is the user's right (Ctrl-Z), so only ranks are stopped.
RANK_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP, signal.SIGSEGV)
LAUNCHER_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def marked(mark):
    """Process id -> its program's name, of all processes that inherited the mark."""
    found = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            if mark.encode() in pathlib.Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                found[int(entry)] = pathlib.Path(f"/proc/{entry}/comm").read_text().strip()
        except OSError:
            continue
    return found


def start_job(folder, mark, ranks):
    command = [BIN / "dtrun", "-n", str(ranks), "--", BIN / "dtrain", "--strategy", "ddp",
               "--config", ROOT / "configs/experiments/mini.json", "--global-batch", str(ranks), "--steps", "100000",
               "--data", ROOT / "tests/golden/text.bin", "--threads", "1", "--run-dir", folder / "run"]
    name, _, value = mark.partition("=")
    return subprocess.Popen(command, env={**os.environ, name: value, "TMPDIR": str(folder)},
                            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def one_job(folder):
    """Returns what was done, and what was wrong with the end ("" for nothing)."""
    mark, ranks = f"SOAK_MARK={uuid.uuid4().hex}", random.choice((1, 2, 3))
    job = start_job(folder, mark, ranks)
    time.sleep(random.expovariate(0.5))
    processes = marked(mark)
    names = {"rank": [pid for pid, name in processes.items() if name == "dtrain"],
             "launcher": [pid for pid, name in processes.items() if name == "dtrun"]}
    kind = random.choice([name for name, pids in names.items() if pids] or ["launcher"])
    victim = random.choice(names[kind] or [job.pid])
    how = random.choice(RANK_SIGNALS if kind == "rank" else LAUNCHER_SIGNALS)
    done = f"{ranks} ranks, {how.name} to a {kind}"
    try:
        os.kill(victim, how)
        error = job.communicate(timeout=ENDS_WITHIN)[1]
    except (ProcessLookupError, subprocess.TimeoutExpired) as problem:
        return done, f"{type(problem).__name__}: {problem}"
    end = time.monotonic() + ENDS_WITHIN  # a killed launcher's other half needs a moment
    while marked(mark) and time.monotonic() < end:
        time.sleep(0.01)
    left = marked(mark)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    files = [name for name in os.listdir(folder) if name != "run"]
    if left or (files and how != signal.SIGKILL):
        return done, f"left over: {left} {files}"
    return done, "" if job.returncode != 0 else f"status 0\n{error[-2000:]}"


def main(minutes):
    for number in (signal.SIGINT, signal.SIGHUP):  # jobs would inherit that nohup or a shell's & ignores them
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    seed = random.randrange(2**32)
    random.seed(seed)
    print(f"kills: {minutes:g} minutes, seed {seed}", flush=True)
    end, jobs, bad = time.monotonic() + 60 * minutes, 0, 0
    while time.monotonic() < end:
        with tempfile.TemporaryDirectory(prefix="dtrain-soak-") as folder:
            done, problem = one_job(pathlib.Path(folder))
        jobs += 1
        if problem:
            bad += 1
            print(f"job {jobs}, {done}: {problem}", flush=True)
    print(f"kills: {jobs} jobs, {bad} ended badly")
    return 0 if jobs and not bad else 1


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
