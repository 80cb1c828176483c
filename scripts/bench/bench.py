"""The measurements of scripts/bench.sh; docs/guide/benchmarks.md explains them."""

import argparse
import dataclasses
import datetime
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import bench_ends
import runs
from runs import BIN, ROOT, launched

OUTPUT = ROOT / "build" / "bench"
SEQUENCES = 8  # of a microbatch, on each rank
STARTS = 20  # of each start-up command


@dataclasses.dataclass(frozen=True)
class Cell:
    """One way to do the same work."""

    name: str
    ranks: int
    threads: int  # per rank
    accumulation: int = 1
    strategy: str = "ddp"  # of several ranks


CELLS = [
    Cell("single, 1 thread", ranks=1, threads=1),
    Cell("single, 2 threads", ranks=1, threads=2),
    Cell("ddp, 2 ranks x 1 thread", ranks=2, threads=1),
    Cell("ddp, 2 ranks x 1 thread, accumulation 4", ranks=2, threads=1, accumulation=4),
    Cell("fsdp, 2 ranks x 1 thread", ranks=2, threads=1, strategy="fsdp"),
]


def run(command):
    """Standard output, and the largest resident set of any process that the command waited for, in bytes."""
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen([str(word) for word in command], stdout=out, stderr=err, env=environment, cwd=ROOT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0), err.seek(0)
        if process.returncode != 0:
            sys.exit(f"bench: status {process.returncode} of {' '.join(map(str, command))}\n{err.read().decode()[-3000:]}")
        return out.read().decode(), usage.ru_maxrss * 1024


def steps_of(cell, options):
    """Optimizer steps of a block, warm-up and timed: the same number of microbatches in every cell."""
    return max(1, options.warmup // cell.accumulation), max(1, options.steps // cell.accumulation)


def strategy_of(cell):
    return cell.strategy if cell.ranks > 1 else "single"


def dtrain_block(cell, options, checkout=ROOT):
    warmup, timed = steps_of(cell, options)
    with tempfile.TemporaryDirectory() as folder:
        _, peak = run(launched(cell.ranks, "--config", checkout / f"configs/experiments/{options.config}.json",
                               "--strategy", strategy_of(cell), "--data", OUTPUT / "text.txt",
                               "--global-batch", "0", "--microbatch", SEQUENCES, "--grad-accum", cell.accumulation,
                               "--threads", cell.threads, "--steps", warmup + timed, "--warmup-steps", "0",
                               "--log-every", "0", "--run-dir", folder, folder=checkout / "build" / "release" / "bin"))
        steps = runs.steps_of(folder)
    tokens = steps[-1]["tokens"] - steps[warmup - 1]["tokens"]
    seconds = sum(step["step_seconds"] for step in steps[warmup:])
    return {"tokens_per_second": tokens / seconds, "peak_bytes": peak, "tensor_bytes": steps[-1]["memory_bytes"],
            "wait_share": sum(step["wait_seconds"] for step in steps[warmup:]) / seconds}


def beside_block(cell, options):
    return dtrain_block(cell, options, options.beside.resolve())


def peer_block(cell, options):
    warmup, timed = steps_of(cell, options)
    launcher = [options.peer]
    if cell.ranks > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", cell.ranks]
    output, _ = run([*launcher, ROOT / "scripts/peer/bench_peer.py", "--config", options.config, "--batch", SEQUENCES,
                     "--parallel", strategy_of(cell), "--accumulate", cell.accumulation,
                     "--threads", cell.threads, "--text", OUTPUT / "text.txt", "--warmup", warmup, "--steps", timed,
                     "--blocks", "1"])
    line = json.loads(output.splitlines()[-1])
    return {"tokens_per_second": line["tokens_per_s"]["median"], "peak_bytes": int(line["peak_mib"] * 2**20)}


def measure(options):
    """Name of a cell -> program -> its blocks; the programs take turns, and so does who begins."""
    programs = {"dtrain": dtrain_block, **({"peer": peer_block} if options.peer else {}),
                **({"beside": beside_block} if options.beside else {})}
    blocks = {cell.name: {program: [] for program in programs} for cell in CELLS}
    for index in range(options.rounds):
        for cell in CELLS:
            for program in list(programs)[:: 1 if index % 2 == 0 else -1]:
                show(f"round {index + 1} of {options.rounds}: {cell.name}, {program}")
                blocks[cell.name][program].append(programs[program](cell, options))
    show("")
    return blocks


def show(progress):
    """Prints to standard error; on a terminal, replaces the previous text, which "" removes."""
    if sys.stderr.isatty():
        print("\r" + progress.ljust(90) + "\r", end="", file=sys.stderr, flush=True)
    elif progress:
        print(progress, file=sys.stderr, flush=True)


def turns(what, programs, rounds):
    """The programs of each round; who begins takes turns."""
    for index in range(rounds):
        for program in list(programs)[:: 1 if index % 2 == 0 else -1]:
            show(f"{what}: round {index + 1} of {rounds}, {program}")
            yield program
    show("")


def milliseconds(command, status, starts=STARTS):
    times = []
    for _ in range(starts):
        begin = time.perf_counter()
        found = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode
        times.append(1000 * (time.perf_counter() - begin))
        if found != status:
            sys.exit(f"bench: status {found} instead of {status} of {' '.join(map(str, command))}")
    return statistics.median(times)


def measure_starts():
    return {"/bin/true, for comparison": milliseconds(["/bin/true"], 0),
            "dtrain --help": milliseconds([BIN / "dtrain", "--help"], 0),
            "a configuration error": milliseconds([BIN / "dtrain", "--widht", "64"], 2)}


def measure_job_starts():
    """Whole jobs of ranks that compute nothing; the stubs (tests/support/ranks/rank_stub.cpp) meet as dtrain's ranks do."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    stub = [BIN / "rank_stub"]
    return {"2 ranks of /bin/true": milliseconds([BIN / "dtrun", "-n", "2", "--", "/bin/true"], 0),
            "2 emulated nodes x 2 of /bin/true":
                milliseconds([BIN / "dtrun", "--emulate-nodes", "2", "-n", "2", "--", "/bin/true"], 0),
            "2 emulated nodes x 2 stub ranks":
                milliseconds([BIN / "dtrun", "--emulate-nodes", "2", "-n", "2", "--", *stub], 0),
            "512 stub ranks": milliseconds([BIN / "dtrun", "-n", "512", "--", *stub], 0, starts=3)}


def median_of(blocks, key):
    return statistics.median(block[key] for block in blocks)


def over(blocks, other):
    """Name of a cell -> dtrain's tokens/s over the other program's, of each round: blocks that ran side by side."""
    return {name: [a["tokens_per_second"] / b["tokens_per_second"] for a, b in zip(of["dtrain"], of[other])]
            for name, of in blocks.items()}


def over_beside(blocks):
    return {name: statistics.median(values) for name, values in over(blocks, "beside").items()}


def ratios(blocks):
    """dtrain over peer; medians over the rounds."""
    over_peer = over(blocks, "peer")
    single = over_peer[CELLS[0].name]
    result = {name: statistics.median(values) for name, values in over_peer.items()}
    for cell in (cell for cell in CELLS[2:] if cell.strategy == "ddp"):
        scaling = [several / one for several, one in zip(over_peer[cell.name], single)]
        result[f"scaling of {cell.name}"] = statistics.median(scaling)
    return result


def fsdp_over_ddp(blocks):
    """Median over rounds of dtrain's fully sharded speed over its own ddp's."""
    rates = [[block["tokens_per_second"] for block in blocks[name]["dtrain"]]
             for name in ("fsdp, 2 ranks x 1 thread", "ddp, 2 ranks x 1 thread")]
    return statistics.median(fsdp / ddp for fsdp, ddp in zip(*rates))


def check_peer(python):
    try:
        found = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True,
                               check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"bench: --peer {python} cannot import torch ({error}); scripts/peer/README.md says how to make one")
    if not found.startswith("2.11.0"):
        sys.exit(f"bench: --peer {python} has torch {found.strip()}; it must be 2.11.0, as for dtrain")


def can_find(python, module):
    """Whether this Python could import the module."""
    program = f"import importlib.util, sys; sys.exit(importlib.util.find_spec('{module}') is None)"
    return subprocess.run([python, "-c", program], check=False).returncode == 0


def prepare(peer):
    """Checks the peer, if any, and writes the text that all benchmarks read; returns its path."""
    if peer:
        check_peer(peer)
    OUTPUT.mkdir(parents=True, exist_ok=True)
    text = OUTPUT / "text.txt"
    text.write_text(run(["bible", "-f", "gen1:1-rev22:21"])[0])
    return text


def write(name, report):
    """Returns what to print of the report's place."""
    path = OUTPUT / f"{name}.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    return f"\nwritten to {path.relative_to(ROOT)}"


def machine():
    model = next((line.partition(":")[2].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "")
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False)
    return {"cpu": model, "cores": len(os.sched_getaffinity(0)), "load_before": os.getloadavg()[0],
            "commit": commit.stdout.strip()}


def print_table(report):
    print(f"{report['machine']['cpu']}, {report['machine']['cores']} cores, load {report['machine']['load_before']:.1f} "
          f"before; {report['config']}, {SEQUENCES} sequences a microbatch, medians of {report['rounds']} blocks\n")
    print(f"{'':42}{'tokens/s':>10}{'waits':>8}{'peak RSS':>12}{'tensors':>12}" +
          (f"{'peer tok/s':>12}{'peer RSS':>12}{'ratio':>8}" if "ratios" in report else ""))
    for name, programs in report["blocks"].items():
        own = programs["dtrain"]
        line = (f"{name:42}{median_of(own, 'tokens_per_second'):>10,.0f}{100 * median_of(own, 'wait_share'):>7.1f}%"
                f"{median_of(own, 'peak_bytes') / 2**20:>8.0f} MiB{median_of(own, 'tensor_bytes') / 2**20:>8.0f} MiB")
        if "peer" in programs:
            peer = programs["peer"]
            line += (f"{median_of(peer, 'tokens_per_second'):>12,.0f}{median_of(peer, 'peak_bytes') / 2**20:>8.0f} MiB"
                     f"{report['ratios'][name]:>8.2f}")
        print(line)
    for name, value in report.get("ratios", {}).items():
        if name.startswith("scaling"):
            print(f"{name + ', dtrain over peer':98}{value:>8.2f}")
    print(f"{'fsdp over ddp, dtrain':98}{report['fsdp_over_ddp']:>8.2f}")
    for name, value in report.get("over_beside", {}).items():
        print(f"{name + ', over the build beside it':98}{value:>8.3f}")
    print("\nstart-up, medians of", STARTS)
    for name, value in report["start_milliseconds"].items():
        print(f"{name:42}{value:>7.1f} ms")
    print("\nends of jobs of 2 ranks, the median of failures and the longest of lives")
    for name, value in report["end_milliseconds"].items():
        print(f"{name:58}{value:>7.1f} ms")


def main():
    parser = argparse.ArgumentParser(prog="scripts/bench.sh", description="Measures dtrain (docs/guide/benchmarks.md).")
    parser.add_argument("--quick", action="store_true", help="one round of a few steps, as a smoke test")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of blocks [5]")
    parser.add_argument("--steps", type=int, default=40, help="timed microbatches of a block, per rank [40]")
    parser.add_argument("--warmup", type=int, default=8, help="warm-up microbatches of a block [8]")
    parser.add_argument("--config", default="mini", choices=["mini", "small"], help="experiment of configs/ [mini]")
    parser.add_argument("--peer", metavar="PYTHON", help="a Python with torch 2.11.0, to run scripts/peer")
    parser.add_argument("--beside", metavar="CHECKOUT", type=pathlib.Path,
                        help="another dtrain checkout with a release build, to compare with")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.steps, options.warmup = 1, 8, 4
    prepare(options.peer)
    report = {"time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "machine": machine(),
              "config": options.config, "rounds": options.rounds, "steps": options.steps}
    show("starts of programs and jobs")
    report["start_milliseconds"] = {**measure_starts(), **measure_job_starts()}
    report["blocks"] = measure(options)
    report["fsdp_over_ddp"] = fsdp_over_ddp(report["blocks"])
    if options.peer:
        report["ratios"] = ratios(report["blocks"])
    if options.beside:
        report["over_beside"] = over_beside(report["blocks"])
    show("ends of jobs")
    report["end_milliseconds"] = bench_ends.measure(BIN / "dtrun", options.peer)
    show("")
    written = write(report["time"][:19].replace(":", ""), report)
    print_table(report)
    print(written)


if __name__ == "__main__":
    main()
