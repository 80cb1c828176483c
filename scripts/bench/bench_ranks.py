"""What ranks of one machine cost: the part of scripts/bench.sh cpu that communicates; docs/internals/performance.md explains it."""

import argparse
import concurrent.futures
import os
import re
import statistics
import subprocess
import tempfile
import time

import bench
from bench import OUTPUT, Cell
from runs import BIN, ROOT

SINGLE = Cell("single, 1 thread", ranks=1, threads=1)
RANKS = (2, 4, 8)
STARTS = 10


def small(warmup, steps):
    return argparse.Namespace(config="small", warmup=warmup, steps=steps)


def singles(count, options):
    """Runs that share nothing but the machine: as fast as ranks could be."""
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return sum(block["tokens_per_second"]
                   for block in pool.map(lambda _: bench.dtrain_block(SINGLE, options), range(count)))


def scaling(ranks, rounds):
    """Rates of ranks over as many times that of a single run, and the share of a step that they wait; medians of rounds."""
    options = small(warmup=2, steps=10)
    cells = {name: Cell(name, ranks=ranks, threads=1, strategy=name) for name in ("ddp", "fsdp")}
    found = {name: {"over_single": [], "waits": []} for name in ("runs at once", *cells)}
    for index in range(rounds):
        bench.show(f"{ranks} ranks: round {index + 1} of {rounds}")
        single = ranks * bench.dtrain_block(SINGLE, options)["tokens_per_second"]
        found["runs at once"]["over_single"].append(singles(ranks, options) / single)
        for name, cell in cells.items():
            block = bench.dtrain_block(cell, options)
            found[name]["over_single"].append(block["tokens_per_second"] / single)
            found[name]["waits"].append(block["wait_share"])
    return {name: {key: statistics.median(values) for key, values in of.items() if values} for name, of in found.items()}


def scalings(rounds):
    """Number of ranks -> figures; none where the machine has fewer cores."""
    cores = len(os.sched_getaffinity(0))
    return {ranks: scaling(ranks, rounds) if ranks <= cores else None for ranks in RANKS}


def seconds_to_first_step(launcher, *strategy):
    """From the start of the process to the line that tells of the first step."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        job = subprocess.Popen([*launcher, BIN / "dtrain", "--config", ROOT / "configs/experiments/mini.json", *strategy,
                                "--data", OUTPUT / "text.txt", "--threads", "1", "--steps", "2", "--log-every", "1",
                                "--checkpoint-every", "none", "--run-dir", folder], stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, text=True, cwd=ROOT)
        for line in job.stdout:
            if re.search(r"\bstep +1/", line):
                seconds = time.perf_counter() - begin
        job.communicate()
        if job.returncode != 0:
            raise SystemExit(f"bench: status {job.returncode} of a job that should show how fast it starts")
        return seconds


def starts():
    kinds = {"single": ([],), "2 ranks under dtrun": ([BIN / "dtrun", "-n", "2", "--"], "--strategy", "ddp")}
    return {name: statistics.median(seconds_to_first_step(*kind) for _ in range(STARTS)) for name, kind in kinds.items()}


def all_reduces():
    """Size -> contender -> milliseconds, of two ranks."""
    output, _ = bench.run([BIN / "dist_tests", "[.bench-comm]"])
    found, size = {}, None
    for line in output.splitlines():
        if title := re.fullmatch(r"(\d+) bytes, (\d+) processes", line):
            size = int(title[1]) if title[2] == "2" else None
        elif size and (row := re.fullmatch(r"  (.+?) +least +[\d.]+ ms, median +([\d.]+) ms.*", line)):
            found.setdefault(size, {})[row[1]] = float(row[2])
    return found


def measure(rounds):
    return {"scaling": scalings(rounds), "starts": starts(), "all_reduce": all_reduces()}


def print_tables(found):
    print("\n| small, ranks x 1 thread | tokens/s over as many times a single run's | waits |\n| --- | --- | --- |")
    for ranks, of_ranks in found["scaling"].items():
        if of_ranks is None:
            print(f"| {ranks} ranks | unmeasured: fewer cores | |")
            continue
        for name, of in of_ranks.items():
            waits = f"{of['waits']:.1%}" if "waits" in of else ""
            print(f"| {ranks} ranks, {name} | {of['over_single']:.3f} | {waits} |")
    print("\n| start of the process to the end of the first step, mini | s |\n| --- | --- |")
    for name, seconds in found["starts"].items():
        print(f"| {name} | {seconds:.2f} |")
    print("\n| all-reduce, 2 ranks | shm | gloo, ordered | gloo, fast | gloo, ordered over shm |\n| --- | --- | --- | --- | --- |")
    for size, of in found["all_reduce"].items():
        shm, ordered, fast = of["shm, of allocate()"], of["gloo, ordered"], of["gloo, fast"]
        print(f"| {size:,} bytes | {shm:.3f} ms | {ordered:.3f} ms | {fast:.3f} ms | {ordered / shm:.0f} |")
