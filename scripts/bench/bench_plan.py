"""The measurements of scripts/bench.sh plan: what dtrain plan predicts beside what runs measure; docs/guide/planning.md explains them."""

import argparse
import dataclasses
import json
import pathlib
import re
import statistics
import subprocess
import tempfile

import bench
from bench import OUTPUT
from runs import BIN, ROOT, launched, steps_of

UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
SECONDS = {"ms": 1e-3, "s": 1.0}
ROW = re.compile(r" *\d+ +(?P<ranks>\d+) +(?P<memory>[\d.]+) (?P<unit>\w+) +(?P<sent>[\d.]+) (?P<sent_unit>\w+) +(?P<bubble>[\d.]+) +"
                 r"(?P<step>[\d.]+) (?P<time>m?s) +\d+% +[\d,.]+k? +(?P<flags>--.*)")
MORE_RANKS = 4  # than a small machine has cores: their times mean nothing
WARMUP = 2  # steps
COSTS = {"forward": 1, "backward": 2}


@dataclasses.dataclass(frozen=True)
class Figures:
    """Of a layout, predicted or measured."""

    memory: float  # bytes of the tensors of a rank
    seconds: float  # of a step
    sent: float  # bytes, by a rank in a step
    bubble: float  # time without work over time with work, of a pipeline


def predictions(model):
    """Layout -> its figures, in the order of the plan."""
    output, _ = bench.run([BIN / "dtrain", "plan", *model, "--show", "100"])
    found = {}
    for line in output.splitlines():
        if row := ROW.fullmatch(line):
            found[int(row["ranks"]), row["flags"]] = Figures(memory=float(row["memory"]) * UNITS[row["unit"]],
                                                             seconds=float(row["step"]) * SECONDS[row["time"]],
                                                             sent=float(row["sent"]) * UNITS[row["sent_unit"]], bubble=float(row["bubble"]))
    return found


def passes_of_stages(trace, stages):
    """The passes of each stage in the order in which its first rank made them in one step: (forward or backward, microbatch)."""
    spans = sorted((event for event in trace if event["ph"] == "X" and event["name"] in COSTS), key=lambda span: span["ts"])
    ranks = 1 + max(span["pid"] for span in spans)
    orders = []
    for rank in range(0, ranks, ranks // stages):
        passes = ((span["name"], span["args"]["microbatch"]) for span in spans if span["pid"] == rank)
        orders.append(list(dict.fromkeys(passes)))  # a pass has a span for each block
    return orders


def replayed_bubble(orders):
    """Of these passes, had each begun once its stage was free and what it needs was there, and taken as long as COSTS says."""
    done, clocks, places = {}, [0] * len(orders), [0] * len(orders)
    while any(place < len(order) for place, order in zip(places, orders)):
        before = list(places)
        for stage, order in enumerate(orders):
            while places[stage] < len(order):
                kind, microbatch = order[places[stage]]
                giver = stage - 1 if kind == "forward" else stage + 1
                needed = done.get((giver, kind, microbatch)) if 0 <= giver < len(orders) else 0
                if needed is None:
                    break
                clocks[stage] = done[stage, kind, microbatch] = max(clocks[stage], needed) + COSTS[kind]
                places[stage] += 1
        if places == before:
            raise ValueError("the passes of the trace wait for each other")
    busy = [sum(COSTS[kind] for kind, _ in order) for order in orders]
    return statistics.mean((max(clocks) - time) / time for time in busy)


def stages_of(ranks, flags):
    words = flags.split()
    if "pp" in words:
        return ranks
    return int(words[words.index("--pp") + 1]) if "--pp" in words else 1


def measured(ranks, flags, model, options, steps):
    """Figures of rank 0; seconds and bytes are medians. The bubble is that of the passes in the order of a profile."""
    threads, stages = max(1, options.cores // ranks), stages_of(ranks, flags)
    # To its last step: a profile's end takes memory of its own.
    profile = ["--profile", steps] if stages > 1 and ranks > options.cores else []
    with tempfile.TemporaryDirectory() as folder:
        bench.run(launched(ranks, *model, *flags.split(), "--threads", threads, "--data", OUTPUT / "text.txt", "--steps", steps + WARMUP,
                           "--log-every", 0, "--val-fraction", 0, "--sample-every", 0, "--checkpoint-every", "none", "--run-dir", folder, *profile))
        timed = steps_of(folder)[WARMUP:]
        bubble = 0
        if profile:
            trace = json.loads((pathlib.Path(folder) / "profile" / "trace.json").read_text())["traceEvents"]
            bubble = replayed_bubble(passes_of_stages(trace, stages))
    return Figures(memory=timed[-1]["memory_bytes"], seconds=statistics.median(step["step_seconds"] for step in timed),
                   sent=statistics.median(step["comm_bytes"] for step in timed), bubble=bubble)


def compare(model, options, microbatches, steps, *planned):
    rows = []
    for microbatch in microbatches:
        work = [*model, "--microbatch", microbatch, "--global-batch", 8]
        for (ranks, flags), predicted in predictions([*work, *planned]).items():
            bench.show(f"{ranks} ranks, {flags}")
            rows.append({"ranks": ranks, "flags": flags, "predicted": dataclasses.asdict(predicted),
                         "measured": dataclasses.asdict(measured(ranks, flags, work, options, steps))})
    bench.show("")
    return rows


def ratio(row, figure):
    return row["predicted"][figure] / row["measured"][figure]


def print_rows(name, rows):
    print(f"\n{name}\n\n| ranks | layout | step, predicted | measured | predicted/measured | memory, the same |\n"
          "| --- | --- | --- | --- | --- | --- |")
    for row in rows:
        times = [f"{1e3 * row[whose]['seconds']:.1f} ms" for whose in ("predicted", "measured")]
        print(f"| {row['ranks']} | `{row['flags']}` | {' | '.join(times)} | {ratio(row, 'seconds'):.2f} | {ratio(row, 'memory'):.3f} |")
    first = min(rows, key=lambda row: row["predicted"]["seconds"])
    fastest = min(row["measured"]["seconds"] for row in rows)
    off = {figure: max(abs(ratio(row, figure) - 1) for row in rows) for figure in ("seconds", "memory")}
    print(f"\n{len(rows)} layouts: times at most {off['seconds']:.0%} off, memory at most {off['memory']:.1%}; "
          f"the one ranked first takes {first['measured']['seconds'] / fastest:.2f} of the fastest one's time")


def print_more_ranks(name, rows):
    print(f"\n{name} on {MORE_RANKS} ranks\n\n| layout | memory, predicted/measured | sent by rank 0, predicted | measured | "
          "bubble, predicted | replayed | step, predicted/measured |\n| --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        figures = [f"{row[whose]['sent'] / 2**20:.2f} MiB" for whose in ("predicted", "measured")]
        figures += [f"{row[whose]['bubble']:.3f}" for whose in ("predicted", "measured")]
        print(f"| `{row['flags']}` | {ratio(row, 'memory'):.3f} | {' | '.join(figures)} | {ratio(row, 'seconds'):.2f} |")
    apart = max(abs(row["predicted"]["bubble"] - row["measured"]["bubble"]) for row in rows)
    memory = max(abs(ratio(row, "memory") - 1) for row in rows)
    print(f"\n{len(rows)} layouts: memory at most {memory:.1%} off, bubbles at most {apart:.3f}")


def model_flags(name):
    settings = json.loads(bench.run([BIN / "dtrain", "--config", ROOT / f"configs/experiments/{name}.json", "--data",
                                     OUTPUT / "text.txt", "--print-config"])[0])
    flags = {"--layers": "layers", "--width": "width", "--heads": "heads", "--neurons": "neurons"}
    return [*(word for flag, key in flags.items() for word in (flag, settings["model"][key])), "--seq-len", settings["data"]["seq_len"]]


def main():
    parser = argparse.ArgumentParser(prog="scripts/bench.sh plan", description="Predictions beside runs (docs/guide/planning.md).")
    parser.add_argument("--steps", type=int, default=8, help="timed steps of each layout [8]")
    parser.add_argument("--microbatches", type=int, nargs="+", default=[1, 2, 4], metavar="B", help="[1 2 4]")
    parser.add_argument("--models", nargs="+", default=["mini", "small"], metavar="NAME",
                        help="[mini small]; the first one on 4 ranks, too")
    options = parser.parse_args()
    options.cores = int(subprocess.run(["nproc"], capture_output=True, text=True, check=True).stdout)
    bench.prepare(peer=None)
    report = {"machine": bench.machine()}
    for name in options.models:
        report[name] = compare(model_flags(name), options, options.microbatches, options.steps)
        print_rows(name, report[name])
    name = options.models[0]
    # Their memory, bytes and order are those of every step.
    report[f"{name} on {MORE_RANKS} ranks"] = more = compare(model_flags(name), options, [1], 4, "--ranks", MORE_RANKS)
    print_more_ranks(name, more)
    print(bench.write("plan", report))


if __name__ == "__main__":
    main()
