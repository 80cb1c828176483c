"""The measurements of scripts/bench.sh data: preparing texts, beside Python's sentencepiece; docs/guide/data.md has the figures."""

import argparse
import dataclasses
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

import bench
from bench import OUTPUT
from runs import BIN, ROOT

PEER = ROOT / "scripts" / "peer" / "sentencepiece_peer.py"
VOCAB = 8000
LOWEST_RATE = 20.0  # MB/s of bytes, on all cores
LOWEST_RATIO = 2.0  # to one thread of Python's sentencepiece
HIGHEST_PEAK = 300 * 2**20  # bytes of memory, for a file of 2 GB
BIG_BYTES, QUICK_BIG_BYTES = 2 * 10**9, 50 * 10**6
# The kernel gives a process the peak of the one that starts it as a beginning; this one has 8 MB.
LAUNCH = """
import os, sys, time
begin = time.perf_counter()
_, status, usage = os.wait4(os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ), 0)
print(time.perf_counter() - begin, usage.ru_maxrss * 1024, file=sys.stderr)
sys.exit(os.waitstatus_to_exitcode(status))
"""


@dataclasses.dataclass(frozen=True)
class Model:
    """A tokenizer; `trainer` is dtrain or Python."""

    type: str
    trainer: str

    @property
    def name(self):
        return f"{self.type}, trained by {self.trainer}"

    @property
    def path(self):
        return OUTPUT / f"{self.trainer}-{self.type}.model"


def peer(options, *words):
    return json.loads(bench.run([options.peer, PEER, *words])[0].splitlines()[-1])


def train(model, text, options):
    if model.trainer == "Python":
        peer(options, "train", "--text", text, "--type", model.type, "--vocab-size", VOCAB, "--output", model.path)
    else:
        bench.run([BIN / "dtrain", "data", "tokenizer", "train", text, "--type", model.type, "--vocab-size", VOCAB, "--output",
                   model.path, "--overwrite"])


def prepare(source, output, *flags):
    """MB/s of text, from the process's start to its end, and its peak of memory."""
    command = [sys.executable, "-I", "-S", "-c", LAUNCH, BIN / "dtrain", "data", "prepare", source, "--output", output,
               "--overwrite", *flags]
    process = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if process.returncode != 0:
        sys.exit(f"bench: status {process.returncode} of data prepare\n{process.stderr}")
    seconds, peak = process.stderr.split()
    return {"rate": source.stat().st_size / float(seconds) / 1e6, "peak_bytes": int(peak)}


def encode(model, text, options):
    """MB/s of the peer's one thread, in the faster of its forms."""
    found = peer(options, "seconds", "--text", text, "--model", model.path)
    return {"rate": text.stat().st_size / min(found.values()) / 1e6, "forms": found}


def in_turns(name, programs, options):
    """Program -> its blocks."""
    blocks = {program: [] for program in programs}
    for program in bench.turns(name, programs, options.rounds):
        blocks[program].append(programs[program]())
    return blocks


def summary(name, blocks):
    own = blocks["dtrain"]
    row = {"name": name, "rate": bench.median_of(own, "rate"), "peak_bytes": max(block["peak_bytes"] for block in own),
           "blocks": blocks}
    if "Python" in blocks:
        row["peer_rate"] = bench.median_of(blocks["Python"], "rate")
        row["ratio"] = statistics.median(a["rate"] / b["rate"] for a, b in zip(own, blocks["Python"]))
    return row


def measure_bytes(name, text, scratch, options):
    return summary(name, in_turns(name, {"dtrain": lambda: prepare(text, scratch / "out.dtok")}, options))


def measure_model(model, text, scratch, options):
    """Rates, and with a peer the tokens of each line, and of all as one document, beside Python's."""
    train(model, text, options)
    document = scratch / "document.dtok"
    programs = {"dtrain": lambda: prepare(text, document, "--tokenizer", model.path)}
    if options.peer:
        programs["Python"] = lambda: encode(model, text, options)
    row = summary(model.name, in_turns(model.name, programs, options))
    if options.peer:
        objects, lines = scratch / "lines.jsonl", scratch / "lines.dtok"
        objects.write_text("".join(json.dumps({"text": line}) + "\n" for line in text.read_text().splitlines()))
        prepare(objects, lines, "--field", "text", "--tokenizer", model.path)
        row["compared"] = peer(options, "compare", "--text", text, "--model", model.path, "--lines", lines, "--document", document)
    return row


def write_big_text(path, text, num_bytes):
    """The text's lines in another order in each copy, each with a number of its own."""
    lines = text.read_text().splitlines()
    number = size = 0
    with path.open("w") as file:
        while size < num_bytes:
            random.Random(number).shuffle(lines)
            copy = "".join(f"{number + i} {line}\n" for i, line in enumerate(lines))
            size += file.write(copy)  # of ASCII
            number += len(lines)


def measure_big(text, scratch, options):
    big = scratch / "big.txt"
    bench.show("a text of 2 GB is written")
    write_big_text(big, text, options.big_bytes)
    size = f"{big.stat().st_size / 1e9:.1f} GB"
    bpe = Model("bpe", "dtrain")
    return [measure_bytes(f"{size} of bytes", big, scratch, options),
            summary(name := f"{size}, {bpe.name}",
                    in_turns(name, {"dtrain": lambda: prepare(big, scratch / "out.dtok", "--tokenizer", bpe.path)}, options))]


def versions(options):
    library = subprocess.run(["pkg-config", "--modversion", "sentencepiece"], capture_output=True, text=True, check=False)
    found = {"sentencepiece of dtrain": library.stdout.strip() or "unknown"}
    if not options.peer:
        return found
    program = "import platform, sentencepiece; print(platform.python_version(), sentencepiece.__version__)"
    try:
        words = subprocess.run([options.peer, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"bench: --peer {options.peer} cannot import sentencepiece ({error}); docs/guide/data.md says how to install it")
    return {**found, "Python": words[0], "sentencepiece of Python": words[1]}


def missed(report):
    """What is below its bar."""
    rows, big = report["rows"], report["big"]
    for row in [rows[0], big[0]]:
        if row["rate"] < LOWEST_RATE:
            yield f"{row['name']}: {row['rate']:.1f} MB/s"
    for row in rows:
        if row.get("ratio", LOWEST_RATIO) < LOWEST_RATIO:
            yield f"{row['name']}: {row['ratio']:.2f} times Python's rate"
        if row.get("compared", {}).get("lines_that_differ"):
            yield f"{row['name']}: {row['compared']['lines_that_differ']} lines differ"
    for row in big:
        if row["peak_bytes"] > HIGHEST_PEAK:
            yield f"{row['name']}: {row['peak_bytes'] / 2**20:.0f} MiB"


def print_row(row):
    line = f"| {row['name']} | {row['rate']:,.1f} | {row['peak_bytes'] / 2**20:.0f} MiB |"
    if "peer_rate" in row:
        compared = row["compared"]
        line += (f" {row['peer_rate']:,.1f} | {row['ratio']:.1f} | {compared['lines_that_differ']:,} of {compared['lines']:,} | "
                 f"{compared['tokens_that_differ']:,} of {compared['tokens']:,} |")
    else:
        line += " | | | |"
    print(line)


def print_table(report):
    machine = report["machine"]
    print(f"{machine['cpu']}, {machine['cores']} cores, load {machine['load_before']:.1f} before, commit {machine['commit']}; "
          + ", ".join(f"{name} {version}" for name, version in report["versions"].items())
          + f"; {report['text_bytes'] / 1e6:.1f} MB of text, vocabularies of {VOCAB}, medians of {report['rounds']}\n")
    print("| tokens | dtrain, MB/s | its peak memory | Python, one thread, MB/s | ratio | lines that differ | "
          "tokens that differ in one document |\n| --- | --- | --- | --- | --- | --- | --- |")
    for row in [*report["rows"], *report["big"]]:
        print_row(row)
    if "Python" not in report["versions"]:
        print("\nLEFT OUT without --peer PYTHON: Python's rates, the tokens that differ, and models that Python trains")


def main():
    parser = argparse.ArgumentParser(prog="scripts/bench.sh data", description="Preparing texts (docs/guide/data.md).")
    parser.add_argument("--quick", action="store_true", help="one round, and 50 MB instead of 2 GB, as a smoke test")
    parser.add_argument("--rounds", type=int, default=3, help="repetitions of each measurement [3]")
    parser.add_argument("--peer", metavar="PYTHON", help="a Python with sentencepiece, to compare with")
    options = parser.parse_args()
    options.big_bytes = QUICK_BIG_BYTES if options.quick else BIG_BYTES
    options.rounds = 1 if options.quick else options.rounds
    text = bench.prepare(peer=None)
    report = {"machine": bench.machine(), "versions": versions(options), "rounds": options.rounds}
    report["text_bytes"] = text.stat().st_size
    trainers = ["dtrain", "Python"] if options.peer else ["dtrain"]
    models = [Model(type, trainer) for trainer in trainers for type in ("bpe", "unigram")]
    with tempfile.TemporaryDirectory(dir=OUTPUT) as folder:
        scratch = pathlib.Path(folder)
        report["rows"] = [measure_bytes("bytes", text, scratch, options),
                          *(measure_model(model, text, scratch, options) for model in models)]
        report["big"] = measure_big(text, scratch, options)
    written = bench.write("data", report)
    print_table(report)
    print(written)
    if below := list(missed(report)):
        sys.exit("bench: missed: " + "; ".join(below))


if __name__ == "__main__":
    main()
