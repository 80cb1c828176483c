"""Starts 512 ranks that are no dtrain, then as many real ones as --memory allows, and compares their bits with those of
fewer ranks; see scripts/soak.sh."""

import argparse
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

from runs import ROOT, TEXT, digest_of, launched

sys.path.insert(0, str(ROOT / "tests" / "cli"))
import stub_ranks  # noqa: E402

STUBS = 512
STUB_SECONDS = 5
MOST_MEMORY = 24 << 30  # bytes
RANK_MEMORY = 90 << 20  # bytes, of a dtrain with this model
MODEL = ("--layers", 1, "--width", 32, "--heads", 1, "--neurons", 64, "--seq-len", 32, "--steps", 4, "--val-fraction", 0,
         "--log-every", 0, "--threads", 1, "--data", TEXT)


def mib(size):
    return f"{size / 2**20:,.0f} MiB"


def cpu_seconds():
    """Of all processes that have been waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def check_stubs():
    """What went wrong."""
    problems = []
    for options, ranks in (((), STUBS), (("--emulate-nodes", "2"), STUBS // 2)):
        load, begin = os.getloadavg()[0], cpu_seconds()
        times = [stub_ranks.seconds_of(ranks, *options) for _ in range(5)]
        print(f"{STUBS} stub ranks {' '.join(options)}: {min(times):.1f} to {max(times):.1f} s, of which the cores computed "
              f"{(cpu_seconds() - begin) / len(times):.1f} s (load {load:.1f} before)", flush=True)
        if min(times) > STUB_SECONDS:
            problems.append(f"{STUBS} stub ranks took {min(times):.1f} s")
    found = stub_ranks.stand(STUBS)
    print(f"{STUBS} stub ranks hold {mib(found.memory)} and {mib(found.kernel)} of the system's; open files: "
          f"{found.open_files[0]} of rank 0, {found.open_files[1]} of the last, {found.launcher_files} of dtrun", flush=True)
    if found.memory + found.kernel > MOST_MEMORY:
        problems.append("they take more than 24 GiB")
    return problems


def train(ranks, sequences):
    """A digest of every loss, norm and weight; prints time and memory."""
    with tempfile.TemporaryDirectory(prefix="dtrain-scale-") as folder:
        strategy = ("--strategy", "ddp") if ranks > 1 else ()
        words = launched(ranks, *MODEL, *strategy, "--global-batch", sequences, "--microbatch", 1, "--run-dir", folder)
        begin = time.monotonic()
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        peak = 0
        while process.poll() is None:
            peak = max(peak, memory_in_use() - before)
            time.sleep(0.2)
        if process.returncode != 0:
            return f"status {process.returncode}: {process.stderr.read()[-500:]}"
        seconds = time.monotonic() - begin
        digest = digest_of(folder)
    print(f"{ranks} ranks: {seconds:.1f} s, {mib(peak)} in all", flush=True)
    return digest


def memory_in_use():
    values = dict(line.split(":") for line in pathlib.Path("/proc/meminfo").read_text().splitlines())
    return 1024 * (int(values["MemTotal"].split()[0]) - int(values["MemAvailable"].split()[0]))


def largest_power(count):
    return 1 << (max(1, count).bit_length() - 1)


def check_training(fewer, most):
    """The same global batch on ever more ranks, the last as many as fit."""
    counts = sorted({ranks for ranks in fewer if ranks < most} | {most})
    digests = {ranks: train(ranks, most) for ranks in counts}
    return [f"{ranks} ranks: {digest[:600]}" for ranks, digest in digests.items() if digest != digests[1]]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, help="of dtrain, to compare with one; a power of two [1, 2, 4, 32, and as many as memory allows, at most 256]")
    parser.add_argument("--no-stubs", action="store_true")
    options = parser.parse_args()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    before = memory_in_use()
    available = int(0.8 * (os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") - before))
    most = options.ranks or min(256, largest_power(available // RANK_MEMORY))
    problems = [] if options.no_stubs else check_stubs()
    if most < 32 and not options.ranks:
        problems.append(f"memory suffices for {most} ranks only, but 32 are needed")
    problems += check_training((1,) if options.ranks else (1, 2, 4, 32), most)
    for problem in problems:
        print(problem)
    sys.exit(1 if problems else 0)
