"""What compression of gradients saves and costs: bytes on the wire and speed between two network namespaces whose link is
shaped to 100 Mbit/s, and the loss after 300 steps of AdamW. Needs root, iproute2 and bible-kjv; docs/guide/benchmarks.md."""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import types

import bench
from runs import BIN, ROOT, launched, metrics_of, steps_of

sys.path.insert(0, str(ROOT / "tests" / "cli"))
import two_hosts  # noqa: E402

OUTPUT = bench.OUTPUT / "compress"
MINI = ROOT / "configs" / "experiments" / "mini.json"
SCHEMES = ("none", "bf16", "topk:0.01", "powersgd:4")
LOSSES = (("none", 0), ("bf16", 0),
          *(("powersgd:4", warmup) for warmup in (0, 50, 100, 150)), ("powersgd:8", 0), ("powersgd:16", 0),
          *(("topk:0.01", warmup) for warmup in (0, 50, 100, 150)), ("topk:0.05", 0))


class Link:
    """The link between two hosts."""

    def __init__(self, stack, rate):
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self.hosts = two_hosts.TwoHosts(types.SimpleNamespace(addCleanup=stack.callback), folder)
        self.devices = [name.replace("dtrain-", "dt") for name in self.hosts.names]
        for name, device in zip(self.hosts.names, self.devices):
            if rate:
                shaping = ["tc", "-n", name, "qdisc", "add", "dev", device, "root", "tbf", "rate", rate, "burst", "64kb", "latency", "50ms"]
                subprocess.run(shaping, check=True)

    def bytes_sent(self):
        """By host 0, as its device counts."""
        shown = subprocess.run(["ip", "-n", self.hosts.names[0], "-s", "-j", "link", "show", "dev", self.devices[0]], check=True,
                               capture_output=True, text=True).stdout
        (device,) = json.loads(shown)
        return device["stats64"]["tx"]["bytes"]

    def train(self, *flags):
        nodes = [self.hosts.command(node, [BIN / "dtrun", "--nnodes", "2", "--node-rank", node, "--master-addr", "10.77.0.1",
                                           "--master-port", "29621", "-n", "1", "--", BIN / "dtrain", *flags]) for node in range(2)]
        environment = {**os.environ, "DTRAIN_JOB_TOKEN": "0123456789abcdef0123456789abcdef"}
        running = [subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for words in nodes]
        try:
            for each in running:
                output = each.communicate(timeout=600)[0]
                if each.returncode != 0:
                    sys.exit(f"bench_compress: a run ended with status {each.returncode}:\n{output}")
        finally:
            for each in running:
                each.terminate()  # dtrun ends its rank; without effect on one that has ended
                each.wait()


def flags_of(scheme, folder, text, steps, *more):
    shutil.rmtree(folder, ignore_errors=True)
    return ["--strategy", "ddp", "--config", MINI, "--data", text, "--compress", scheme, "--steps", str(steps), "--run-dir", folder,
            "--log-every", "0", "--threads", "1", *more]


def measure_link(scheme, text, rate, steps):
    """Tokens per second without the first steps, bytes of a step on the wire."""
    folder = OUTPUT / "run"
    small = ("--global-batch", "2", "--microbatch", "1", "--tensorboard", "off")
    with contextlib.ExitStack() as stack:
        link = Link(stack, rate)
        sent = []
        for count in (2, steps):  # what a start sends is not a step's
            before = link.bytes_sent()
            link.train(*flags_of(scheme, folder, text, count, *small))
            sent.append(link.bytes_sent() - before)
    rates = [line["tokens_per_second"] for line in steps_of(folder)[3:]]
    return statistics.median(rates), (sent[1] - sent[0]) / (steps - 2)


def measure_loss(scheme, warmup, text, steps):
    folder = OUTPUT / "loss"
    subprocess.run(launched(2, *flags_of(scheme, folder, text, steps, "--val-fraction", "0.1", "--compress-warmup", str(warmup), "--tensorboard",
                                         "off")), check=True, capture_output=True)
    return next(line["val_loss"] for line in metrics_of(folder) if line.get("event") == "end")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", default="100mbit", help="rate of the link, in the syntax of tc")
    parser.add_argument("--steps", type=int, default=40, help="steps of the runs over the link")
    parser.add_argument("--loss-steps", type=int, default=300)
    parser.add_argument("--only", choices=("link", "loss"))
    options = parser.parse_args()
    text = bench.prepare(peer=None)
    if options.only != "loss":
        print(f"mini, microbatch 1, 2 ranks, link of {options.rate}")
        print(f"{'--compress':14} {'tok/s':>8} {'over none':>9} {'bytes/step':>11} {'of none':>8}")
        whole = None
        for scheme in SCHEMES:
            rate, sent = measure_link(scheme, text, options.rate, options.steps)
            whole = whole or (rate, sent)
            print(f"{scheme:14} {rate:8,.0f} {rate / whole[0]:9.2f} {sent:11,.0f} {sent / whole[1]:8.2%}", flush=True)
    if options.only != "link":
        print(f"\nmini, batch of 8, validation loss after {options.loss_steps} steps of AdamW")
        print(f"{'--compress':14} {'warm-up':>8} {'loss':>8} {'over none':>9}")
        dense = None
        for scheme, warmup in LOSSES:
            loss = measure_loss(scheme, warmup, text, options.loss_steps)
            dense = dense or loss
            print(f"{scheme:14} {warmup:8} {loss:8.4f} {loss / dense - 1:9.2%}", flush=True)


if __name__ == "__main__":
    main()
