"""The measurements of scripts/bench.sh cpu: training beside PyTorch on a CPU; docs/internals/performance.md explains them."""

import argparse
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import bench
import bench_ranks
import runs
from bench import OUTPUT
from runs import BIN, ROOT

TRIES = 3  # of a quiet row
FOREIGN = 0.1  # of a core, that other processes may take of a quiet row


@dataclasses.dataclass(frozen=True)
class Model:
    """Sizes of the work; the peer's --config and dtrain's differ in what a microbatch holds."""

    config: str
    batch: int
    length: int
    levels: int = 0  # 0: the configuration's
    vocab: int = 256
    dropout: float = 0.1
    fused: bool = False  # the peer's AdamW
    needs: str = "torch"  # what the peer imports


MINI = Model("mini", 8, 128)
SMALL = Model("small", 8, 256)
LARGE = Model("25m", 1, 256)
LONG = {length: Model("small", 1, length, levels=2) for length in (1024, 8192, 16384)}
TRANSFORMERS = {
    "SmolLM2": Model("smollm2", 1, 512, vocab=49152, dropout=0, fused=True, needs="transformers"),
    "small Llama": Model("small_llama", 8, 256, dropout=0, fused=True, needs="transformers"),
    "shakespeare-char": Model("shakespeare-char", 12, 256, dropout=0.2, fused=True),
}
SHORT = ("mini", "small_llama", "shakespeare-char")  # whose steps are short


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    model: Model
    threads: int = 1
    dtype: str = "float32"
    peers: tuple = ("eager", "compiled")
    flags: tuple = ()  # dtrain's
    disturbed: bool = False


def rows(options):
    named = [("mini", MINI), ("small", SMALL), ("25m", LARGE)]
    result = rows_by_threads(named)
    result += [Row(f"{name}, bfloat16", model, dtype="bfloat16", peers=("eager", "compiled", "eager bfloat16",
                                                                      "compiled bfloat16")) for name, model in named]
    result += [Row("small, recompute gates", SMALL, flags=("--recompute", "gates"), peers=("eager",)),
               Row("small, plain kernels", SMALL, flags=("--kernels", "plain"), peers=())]
    result += [Row(f"small, 2 levels, T {length:,}, 2 threads", model, 2, peers=("eager",) if length == 8192 else ())
               for length, model in LONG.items()]
    result += [Row("mini, 2 threads beside a busy process", MINI, 2, peers=("eager",), disturbed=True)]
    result += rows_by_threads(TRANSFORMERS.items())
    return [row for row in result if options.only in row.name]


def rows_by_threads(named):
    return [Row(f"{name}, {threads} thread{'s' if threads > 1 else ''}", model, threads)
            for threads in (1, 2) for name, model in named]


def busy_seconds():
    """Of all cores, by all processes since the machine started."""
    with open("/proc/stat", encoding="ascii") as file:
        fields = [int(field) for field in file.readline().split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def own_seconds():
    usage = os.times()
    return usage.user + usage.system + usage.children_user + usage.children_system


def dtrain_block(row, options):
    model = row.model
    timed = steps_of(model, options)
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--layers", model.levels] if model.levels else []
        _, peak = bench.run([BIN / "dtrain", "--config", ROOT / f"configs/experiments/{model.config}.json", "--data",
                             OUTPUT / "text.txt", "--seq-len", model.length, "--global-batch", 0, "--microbatch", model.batch,
                             "--grad-accum", 1, "--vocab", model.vocab, "--dropout", model.dropout, "--threads", row.threads,
                             "--dtype", row.dtype, "--steps", options.warmup + timed, "--warmup-steps", 0, "--log-every", 0,
                             "--checkpoint-every", "none", "--memory-limit", 0, "--run-dir", folder, *flags, *row.flags])
        steps = runs.steps_of(folder)[options.warmup:]
        sizes = json.loads((pathlib.Path(folder) / "config.json").read_text())["model"]
    # The whole block over its steps, as the peer's is.
    rate = model.batch * model.length * len(steps) / sum(step["step_seconds"] for step in steps)
    block = {"tokens_per_second": rate, "peak_bytes": peak, "tensor_bytes": steps[-1]["memory_bytes"]}
    if sizes["name"] == "bdh":
        block["gflops"] = rate * product_flops_per_token(sizes, model.length) / 1e9
    return block


def peer_block(row, peer, options):
    model = row.model
    flags = ["--levels", model.levels] if model.levels else []
    flags += ["--compile"] if "compiled" in peer else []
    flags += ["--dtype", "bfloat16"] if "bfloat16" in peer else []
    flags += ["--fused"] if model.fused else []
    output, peak = bench.run([options.peer, ROOT / "scripts/peer/bench_peer.py", "--config", model.config, "--batch",
                              model.batch, "--length", model.length, "--vocab", model.vocab, "--dropout", model.dropout,
                              "--threads", row.threads, "--text", OUTPUT / "text.txt", "--warmup", options.warmup,
                              "--steps", steps_of(model, options), "--blocks", 1, *flags])
    return {"tokens_per_second": json.loads(output.splitlines()[-1])["tokens_per_s"]["median"], "peak_bytes": peak}


def steps_of(model, options):
    """Timed steps of a block: about as many tokens whatever the model."""
    return max(2, options.tokens // (model.batch * model.length) if model.config in SHORT else
               options.tokens // (4 * model.batch * model.length))


class Busy:
    """A process that holds one core, where a row wants one."""

    def __init__(self, wanted):
        command = [sys.executable, "-c", "while True: pass"]
        self.process = subprocess.Popen(command) if wanted else None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process:
            self.process.kill()
            self.process.wait()


def measure_once(row, options):
    """Program -> its blocks, which take turns, and the share of a core that other processes took meanwhile."""
    programs = {"dtrain": lambda: dtrain_block(row, options)}
    if options.peer:
        programs.update({peer: lambda peer=peer: peer_block(row, peer, options) for peer in row.peers})
    blocks = {name: [] for name in programs}
    begin, busy, own = time.monotonic(), busy_seconds(), own_seconds()
    with Busy(row.disturbed):
        for name in bench.turns(row.name, programs, options.rounds):
            blocks[name].append(programs[name]())
    foreign = max(0.0, busy_seconds() - busy - (own_seconds() - own)) / (time.monotonic() - begin)
    return blocks, foreign


def measure(row, options):
    if options.peer and not bench.can_find(options.peer, row.model.needs):
        return left_out(row, f"{options.peer} has no {row.model.needs} (scripts/peer/README.md)")
    for _ in range(TRIES):
        blocks, foreign = measure_once(row, options)
        if row.disturbed or foreign <= FOREIGN or options.loud:
            return {"row": dataclasses.asdict(row), "blocks": blocks, "foreign": foreign, **summary(blocks)}
    return left_out(row, f"other processes took {foreign:.2f} of a core, {TRIES} times")


def left_out(row, reason):
    return {"row": dataclasses.asdict(row), "left_out": reason}


def summary(blocks):
    """Medians, and dtrain over the faster of its peers, of blocks that ran side by side."""
    result = {key: bench.median_of(blocks["dtrain"], key) for key in blocks["dtrain"][0]}
    peers = {name: of for name, of in blocks.items() if name != "dtrain"}
    if peers:
        best = max(peers, key=lambda name: bench.median_of(peers[name], "tokens_per_second"))
        result["peer"] = best
        result["peer_tokens_per_second"] = bench.median_of(peers[best], "tokens_per_second")
        result["ratio"] = statistics.median(own["tokens_per_second"] / other["tokens_per_second"]
                                            for own, other in zip(blocks["dtrain"], peers[best]))
        eager = peers.get("eager", peers[best])
        result["memory_ratio"] = result["peak_bytes"] / bench.median_of(eager, "peak_bytes")
    return result


def roofline():
    """GFLOP/s of one thread on the products of a level, by shape."""
    output, _ = bench.run([BIN / "unit_tests", "[.bench-products]"])
    return {name: float(rate) for name, rate in (line.split("\t") for line in output.splitlines() if "\t" in line)}


def product_flops_per_token(sizes, length):
    """What the products of a step of BDH's fused kernels with full attention do, forward and back (docs/guide/model.md)."""
    width, heads = sizes["width"], sizes["heads"]
    n = heads * sizes["neurons"]
    triangle = length * (1 + 32 / length)  # 2 T kappa: blocks of 32 rows on and below the diagonal
    weights = 3 * 6 * width * n
    scores = triangle * (n + width * heads) + 2 * triangle * width * heads + 2 * length * n
    return sizes["layers"] * (weights + scores) + 6 * width * sizes["vocab"]


def product_share(found, gflops):
    """Of the rate that one thread's products alone reach on the shapes of this model, or None where there is no such rate."""
    row = found["row"]
    if "gflops" not in found or row["model"]["length"] > 512 or row["disturbed"] or row["flags"]:
        return None
    size = "25m" if row["model"]["config"] == "25m" else "small"
    rates = [rate for name, rate in gflops.items() if name.startswith(size) and name.endswith(row["dtype"])]
    return found["gflops"] / (row["threads"] * statistics.mean(rates))


def print_table(report):
    machine = report["machine"]
    print(f"{machine['cpu']}, {machine['cores']} cores, commit {machine['commit']}; medians of {report['rounds']} blocks\n")
    print("| work | tokens/s | PyTorch, its faster form | ratio | peak memory over eager's | GFLOP/s of products | "
          "of their rate alone |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for found in report["rows"]:
        name = found["row"]["name"]
        if "left_out" in found:
            print(f"| {name} | left out: {found['left_out']} | | | | | |")
            continue
        peer = f"{found['peer_tokens_per_second']:,.0f} ({found['peer']})" if "peer" in found else ""
        ratio = f"{found['ratio']:.2f}" if "ratio" in found else ""
        memory = f"{found['memory_ratio']:.2f}" if "memory_ratio" in found else f"{found['peak_bytes'] / 2**20:,.0f} MiB"
        share = product_share(found, report["gflops"])
        products = f"{found['gflops']:,.0f} | {share:.0%}" if share else "|"
        print(f"| {name} | {found['tokens_per_second']:,.0f} | {peer} | {ratio} | {memory} | {products} |")
    print("\n| product, one thread | GFLOP/s |\n| --- | --- |")
    for name, rate in report["gflops"].items():
        print(f"| {name} | {rate:,.0f} |")


def main():
    parser = argparse.ArgumentParser(prog="scripts/bench.sh cpu", description="Training on this CPU (docs/internals/performance.md).")
    parser.add_argument("--rounds", type=int, default=5, help="blocks of each kind [5]")
    parser.add_argument("--tokens", type=int, default=16384, help="timed tokens of a block; a quarter for larger models [16384]")
    parser.add_argument("--warmup", type=int, default=2, help="warm-up steps [2]")
    parser.add_argument("--only", default="", metavar="TEXT", help="only rows whose names contain TEXT; ranks: the communication rows")
    parser.add_argument("--loud", action="store_true", help="keep rows that other processes disturbed")
    parser.add_argument("--peer", metavar="PYTHON", help="a Python with torch 2.11.0, and transformers for a Llama, to run scripts/peer")
    options = parser.parse_args()
    bench.prepare(options.peer)
    report = {"machine": bench.machine(), "rounds": options.rounds, "gflops": roofline(), "rows": []}
    for row in rows(options):
        report["rows"].append(measure(row, options))
    if options.only in "ranks":
        report["ranks"] = bench_ranks.measure(options.rounds)
    bench.show("")
    written = bench.write("cpu", report)
    print_table(report)
    if "ranks" in report:
        bench_ranks.print_tables(report["ranks"])
    print(written)


if __name__ == "__main__":
    main()
