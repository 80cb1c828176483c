"""The measurements of scripts/bench.sh plan: what dtrain plan predicts beside what runs measure; docs/planning.md explains them."""

import argparse
import dataclasses
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

import bench
from bench import BIN, OUTPUT, ROOT

UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
SECONDS = {"ms": 1e-3, "s": 1.0}
ROW = re.compile(r" *\d+ +(?P<ranks>\d+) +(?P<memory>[\d.]+) (?P<unit>\w+) +(?P<sent>[\d.]+) (?P<sent_unit>\w+) +[\d.]+ +"
                 r"(?P<step>[\d.]+) (?P<time>m?s) +\d+% +[\d,.]+k? +(?P<flags>--.*)")
MORE_RANKS = 4  # than a small machine has cores: their times mean nothing


@dataclasses.dataclass(frozen=True)
class Figures:
    """Of a layout, predicted or measured."""

    memory: float  # bytes of the tensors of a rank
    seconds: float  # of a step
    sent: float  # bytes, by a rank in a step


def predictions(model):
    """Layout -> its figures, in the order of the plan."""
    output, _ = bench.run([BIN / "dtrain", "plan", *model, "--show", "100"])
    found = {}
    for line in output.splitlines():
        if row := ROW.fullmatch(line):
            found[int(row["ranks"]), row["flags"]] = Figures(memory=float(row["memory"]) * UNITS[row["unit"]],
                                                             seconds=float(row["step"]) * SECONDS[row["time"]],
                                                             sent=float(row["sent"]) * UNITS[row["sent_unit"]])
    return found


def measured(ranks, flags, model, options):
    """Figures of rank 0; seconds and bytes are medians."""
    threads = max(1, options.cores // ranks)
    launcher = [BIN / "dtrun", "-n", ranks, "--"] if ranks > 1 else []
    with tempfile.TemporaryDirectory() as folder:
        bench.run([*launcher, BIN / "dtrain", *model, *flags.split(), "--threads", threads, "--data", OUTPUT / "text.txt",
                   "--steps", options.steps + 2, "--log-every", 0, "--checkpoint-every", "none", "--run-dir", folder])
        lines = [json.loads(line) for line in (pathlib.Path(folder) / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "event" not in line][2:]
    return Figures(memory=steps[-1]["memory_bytes"], seconds=statistics.median(step["step_seconds"] for step in steps),
                   sent=statistics.median(step["comm_bytes"] for step in steps))


def compare(model, options, *planned):
    rows = []
    for microbatch in options.microbatches:
        work = [*model, "--microbatch", microbatch, "--global-batch", 8]
        for (ranks, flags), predicted in predictions([*work, *planned]).items():
            bench.show(f"{ranks} ranks, {flags}")
            found = measured(ranks, flags, work, options)
            rows.append({"ranks": ranks, "flags": flags, "memory": predicted.memory / found.memory,
                         "time": predicted.seconds / found.seconds, "predicted_seconds": predicted.seconds,
                         "seconds": found.seconds, "predicted_sent": predicted.sent, "sent": found.sent})
    bench.show("")
    return rows


def print_rows(name, rows):
    print(f"\n{name}\n\n| ranks | layout | step, predicted | measured | predicted/measured | memory, the same |\n"
          "| --- | --- | --- | --- | --- | --- |")
    for row in rows:
        print(f"| {row['ranks']} | `{row['flags']}` | {1e3 * row['predicted_seconds']:.1f} ms | {1e3 * row['seconds']:.1f} ms | "
              f"{row['time']:.2f} | {row['memory']:.3f} |")
    first = min(rows, key=lambda row: row["predicted_seconds"])
    fastest = min(row["seconds"] for row in rows)
    off = max(abs(row["time"] - 1) for row in rows)
    print(f"\n{len(rows)} layouts: times at most {off:.0%} off, memory at most {max(abs(row['memory'] - 1) for row in rows):.1%}; "
          f"the one ranked first takes {first['seconds'] / fastest:.2f} of the fastest one's time")


def print_more_ranks(name, rows):
    print(f"\n{name} on {MORE_RANKS} ranks\n\n| layout | memory, predicted/measured | sent by rank 0, predicted | measured | step, "
          "predicted/measured |\n| --- | --- | --- | --- | --- |")
    for row in rows:
        print(f"| `{row['flags']}` | {row['memory']:.3f} | {row['predicted_sent'] / 2**20:.2f} MiB | {row['sent'] / 2**20:.2f} MiB | "
              f"{row['time']:.2f} |")


def main():
    parser = argparse.ArgumentParser(prog="scripts/bench.sh plan", description="Predictions beside runs (docs/planning.md).")
    parser.add_argument("--steps", type=int, default=8, help="timed steps of each layout [8]")
    parser.add_argument("--microbatches", type=int, nargs="+", default=[1, 2, 4], metavar="B", help="[1 2 4]")
    parser.add_argument("--models", nargs="+", default=["mini", "small"], metavar="NAME", help="[mini small]")
    options = parser.parse_args()
    options.cores = int(subprocess.run(["nproc"], capture_output=True, text=True, check=True).stdout)
    OUTPUT.mkdir(parents=True, exist_ok=True)
    (OUTPUT / "text.txt").write_text(bench.run(["bible", "-f", "gen1:1-rev22:21"])[0])
    report = {"machine": bench.machine()}
    for name in options.models:
        settings = json.loads(bench.run([BIN / "dtrain", "--config", ROOT / f"configs/experiments/{name}.json", "--data",
                                         OUTPUT / "text.txt", "--print-config"])[0])
        model = [word for key, flag in (("levels", "--levels"), ("width", "--width"), ("heads", "--heads"),
                                        ("neurons", "--neurons")) for word in (flag, settings["model"][key])]
        model += ["--seq-len", settings["data"]["seq_len"]]
        report[name] = compare(model, options)
        print_rows(name, report[name])
    options.microbatches = [1]
    report[f"{name} on {MORE_RANKS} ranks"] = more = compare(model, options, "--ranks", MORE_RANKS)
    print_more_ranks(name, more)
    (OUTPUT / "plan.json").write_text(json.dumps(report, indent=1) + "\n")
    print(f"\nwritten to {(OUTPUT / 'plan.json').relative_to(ROOT)}", file=sys.stdout)


if __name__ == "__main__":
    main()
