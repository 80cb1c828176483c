"""Trains a model in a memory cgroup that ddp does not fit into and full sharding does; see scripts/soak.sh.

Nothing is saved, because a save copies the state, for which there is no room in either case. ddp is refused there before it
starts, and ended by the system where a limit of the user's says to try.

Status 77 says that no such group can be made here (it takes root, or a delegated cgroup).
"""

import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile

from runs import TEXT, launched

RANKS = 2
LEVELS, WIDTH, HEADS, NEURONS = 8, 256, 4, 1024
PARAMETERS = LEVELS * 3 * WIDTH * HEADS * NEURONS + 2 * 256 * WIDTH
PROGRAM = 120 * 2**20  # bytes that each rank takes without a model: LibTorch's own
# Midway between what full sharding holds in all, 16 bytes a parameter, and what ddp holds, 16 a rank.
MEMORY = int((16 + 16 * RANKS) / 2 * PARAMETERS) + RANKS * PROGRAM
REFUSED = 2  # the exit status of what does not fit by its prediction


def place_of_own_group():
    """The folder of this process's memory cgroup and the names of its limit and its peak."""
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            return (pathlib.Path("/sys/fs/cgroup/memory" + path), "memory.limit_in_bytes", "memory.max_usage_in_bytes")
    return pathlib.Path("/sys/fs/cgroup" + path), "memory.max", "memory.peak"


@contextlib.contextmanager
def memory_group(limit):
    """A cgroup of at most `limit` bytes (none: as many as there are); raises OSError where it cannot be made."""
    folder, limit_name, peak_name = place_of_own_group()
    group = folder / f"dtrain-soak-{os.getpid()}"
    group.mkdir()
    try:
        (group / limit_name).read_text()
        if limit:
            (group / limit_name).write_text(str(limit))
        yield group, group / peak_name
    finally:
        group.rmdir()


def train(strategy, limit, *more):
    """(exit status, peak of the group in bytes, what was said last)."""
    with tempfile.TemporaryDirectory(prefix="dtrain-soak-") as folder, memory_group(limit) as (group, peak):
        flags = ["--layers", LEVELS, "--width", WIDTH, "--heads", HEADS, "--neurons", NEURONS, "--tie-layers", "off",
                 "--seq-len", 16, "--microbatch", 1, "--steps", 3, "--threads", 1, "--log-every", 0, "--checkpoint-every", 0,
                 "--data", TEXT, "--run-dir", pathlib.Path(folder) / "run",
                 *more]
        result = subprocess.run(launched(RANKS, "--strategy", strategy, *flags), capture_output=True, text=True, check=False,
                                preexec_fn=lambda: (group / "cgroup.procs").write_text(str(os.getpid())))
        used = int(peak.read_text()) if peak.exists() else 0
        return result.returncode, used, (result.stderr.splitlines() or [""])[-1]


def main():
    try:
        with memory_group(MEMORY):
            pass
    except OSError as error:
        print(f"memory: SKIPPED, cannot create a memory cgroup: {error}")
        return 77
    print(f"memory: {PARAMETERS:,} parameters on {RANKS} ranks in {MEMORY / 2**20:.0f} MiB", flush=True)
    failed = False
    any_way = ("--memory-limit", "1TiB")
    for strategy, limit, more, ends in (("ddp", 0, (), "done"), ("ddp", MEMORY, (), "refused"),
                                        ("ddp", MEMORY, any_way, "killed"), ("fsdp", MEMORY, (), "done")):
        status, used, last = train(strategy, limit, *more)
        is_right = {0: "done", REFUSED: "refused"}.get(status, "killed") == ends
        failed |= not is_right
        print(f"  {strategy:5} {'limited' if limit else 'free':8} status {status:3}, peak {used / 2**20:6.0f} MiB: "
              f"{'as it must be' if is_right else 'WRONG'}   {last}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
