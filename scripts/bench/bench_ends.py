"""How soon jobs of two ranks end; docs/guide/benchmarks.md explains the figures."""

import os
import pathlib
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time

REPEATS = 10
LIMIT = 60  # seconds; torchrun lets ranks live on
# Writes down that it is there; once both ranks are, rank 1 writes the time and fails where that is asked for.
RANK = """
import os, pathlib, sys, time
folder, fails = pathlib.Path(sys.argv[1]), sys.argv[2] == "fails"
(folder / f"rank-{os.getpid()}").touch()
if fails and os.environ["RANK"] == "1":
    while len(list(folder.glob("rank-*"))) < 2:
        time.sleep(0.001)
    time.sleep(0.1)
    (folder / "failed").write_text(repr(time.monotonic()))
    os._exit(7)
time.sleep(600)
"""


def start(launcher, folder, does):
    command = [*map(str, launcher), sys.executable, "-S", "-c", RANK, folder, does]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def from_failure_to_exit(launcher):
    """Seconds, and the launcher's status; the other rank obeys SIGTERM."""
    with tempfile.TemporaryDirectory() as folder:
        status = start(launcher, folder, "fails").wait(timeout=LIMIT)
        return time.monotonic() - float(pathlib.Path(folder, "failed").read_text()), status


def life_after_kill(launcher):
    """Seconds from the launcher's SIGKILL to the end of its last rank, at most 5; the ranks are killed then."""
    with tempfile.TemporaryDirectory() as folder:
        job = start(launcher, folder, "waits")
        while len(ranks := list(pathlib.Path(folder).glob("rank-*"))) < 2:
            time.sleep(0.001)
        ends = [os.pidfd_open(int(rank.name.partition("-")[2])) for rank in ranks]
        begin = time.monotonic()
        job.kill()
        for end in ends:  # a descriptor of a process can be read when that has ended
            select.select([end], [], [], max(0, begin + 5 - time.monotonic()))
        seconds = time.monotonic() - begin
        for end in ends:
            if not select.select([end], [], [], 0)[0]:
                signal.pidfd_send_signal(end, signal.SIGKILL)
            os.close(end)
        job.wait()
        return seconds


def measure(dtrun, peer=None):
    """Name -> milliseconds; the median of failures, the longest life. `peer` is a Python that has torchrun."""
    launchers = {"dtrun -n 2": [dtrun, "-n", "2", "--"],
                 "dtrun --emulate-nodes 2": [dtrun, "--emulate-nodes", "2", "-n", "1", "--"]}
    if peer:
        launchers["torchrun"] = [peer, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--no-python"]
    figures = {}
    for name, launcher in launchers.items():
        repeats = 2 if name == "torchrun" else REPEATS
        failures = [from_failure_to_exit(launcher) for _ in range(repeats)]
        status = failures[0][1]
        figures[f"{name}: a rank's status 7 to its exit ({status})"] = 1000 * statistics.median(time for time, _ in failures)
        figures[f"{name}: a rank after its SIGKILL"] = 1000 * max(life_after_kill(launcher) for _ in range(repeats))
    return figures
