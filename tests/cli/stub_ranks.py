"""Starts many ranks that are no dtrain (tests/support/ranks/rank_stub.cpp) and measures them; for tests, scripts/soak.sh and
scripts/bench.sh."""

import dataclasses
import os
import pathlib
import re
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
from runs import BIN, children_of  # noqa: E402

DTRUN, STUB = BIN / "dtrun", BIN / "rank_stub"
TOLD = re.compile(r"rank (\d+): (\d+) open files, (\d+) bytes for the group")


def command(ranks, *options, seconds=0):
    return [str(DTRUN), *options, "-n", str(ranks), "--", str(STUB), str(seconds)]


def seconds_of(ranks, *options, limit=60):
    """From the start of dtrun to its end; a failure is an error."""
    begin = time.monotonic()
    subprocess.run(command(ranks, *options), check=True, capture_output=True, timeout=limit)
    return time.monotonic() - begin


def memory_of(pid):
    """A process's proportional share of all memory that it maps, in bytes; 0 when it has gone."""
    try:
        text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 1024 * int(re.search(r"^Pss: +(\d+) kB", text, re.MULTILINE).group(1))


def kernel_memory():
    """Memory that the system holds for processes, in bytes."""
    values = dict(re.findall(r"^(\w+): +(\d+) kB", pathlib.Path("/proc/meminfo").read_text(), re.MULTILINE))
    return 1024 * sum(int(values[name]) for name in ("Slab", "PageTables", "KernelStack"))


@dataclasses.dataclass
class Standing:
    """What ranks hold that have met and stay."""

    open_files: list  # of the ranks that tell: the first and the last
    launcher_files: int
    memory: int  # bytes: all ranks and dtrun, shared memory once
    kernel: int  # bytes: what the system holds for them, roughly


def stand(ranks, *options, limit=60):
    """Starts the ranks, measures them when they have met, and ends them."""
    before = kernel_memory()
    process = subprocess.Popen(command(ranks, *options, seconds=limit), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True)
    try:
        told = {}
        while len(told) < 2:
            line = process.stdout.readline()
            if not line:
                raise AssertionError(f"dtrun: status {process.wait()}")
            if match := TOLD.search(line):
                told[int(match.group(1))] = int(match.group(2))
        time.sleep(0.5)  # the store closes
        supervisor, = children_of(process.pid)
        own = children_of(supervisor)
        memory = sum(memory_of(pid) for pid in (process.pid, supervisor, *own))
        files = len(os.listdir(f"/proc/{supervisor}/fd"))
        return Standing([told[rank] for rank in sorted(told)], files, memory, kernel_memory() - before)
    finally:
        process.terminate()
        process.communicate(timeout=limit)
