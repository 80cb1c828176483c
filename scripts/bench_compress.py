"""What compression of gradients saves and costs: bytes on the wire and speed between two network namespaces whose link is
shaped to 100 Mbit/s, and the loss after 300 steps of AdamW. Needs root, iproute2 and bible-kjv; docs/benchmarks.md."""

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys

from runs import BIN, ROOT, launched, metrics_of, steps_of

OUTPUT = ROOT / "build" / "bench" / "compress"
MINI = ROOT / "configs" / "experiments" / "mini.json"
ADDRESSES = ("10.213.78.1", "10.213.78.2")
SCHEMES = ("none", "bf16", "topk:0.01", "powersgd:4")
LOSSES = (("none", 0), ("bf16", 0),
          *(("powersgd:4", warmup) for warmup in (0, 50, 100, 150)), ("powersgd:8", 0), ("powersgd:16", 0),
          *(("topk:0.01", warmup) for warmup in (0, 50, 100, 150)), ("topk:0.05", 0))


def ip(*words):
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


class Link:
    """Two hosts, each a network namespace, and one link between them."""

    def __init__(self, stack, rate):
        self.names = [f"dtc{os.getpid()}x{node}" for node in range(2)]
        self.devices = [f"dtc{os.getpid()}e{node}" for node in range(2)]
        for name in self.names:
            ip("netns", "add", name)
            stack.callback(subprocess.run, ["ip", "netns", "del", name], check=False)
        ip("link", "add", self.devices[0], "type", "veth", "peer", "name", self.devices[1])
        for name, device, address in zip(self.names, self.devices, ADDRESSES):
            ip("link", "set", device, "netns", name)
            ip("-n", name, "addr", "add", address + "/24", "dev", device)
            ip("-n", name, "link", "set", device, "up")
            ip("-n", name, "link", "set", "lo", "up")
            if rate:
                shaping = ["tc", "-n", name, "qdisc", "add", "dev", device, "root", "tbf", "rate", rate, "burst", "64kb", "latency", "50ms"]
                subprocess.run(shaping, check=True)

    def bytes_sent(self):
        """By host 0, as its device counts."""
        (device,) = json.loads(ip("-n", self.names[0], "-s", "-j", "link", "show", "dev", self.devices[0]))
        return device["stats64"]["tx"]["bytes"]

    def train(self, *flags):
        nodes = [["ip", "netns", "exec", name, BIN / "dtrun", "--nnodes", "2", "--node-rank", str(node), "--master-addr", ADDRESSES[0],
                  "--master-port", "29621", "-n", "1", "--", BIN / "dtrain", *flags] for node, name in enumerate(self.names)]
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
    parser.add_argument("--rate", default="100mbit", help="of the link, as tc takes it")
    parser.add_argument("--steps", type=int, default=40, help="of runs over the link")
    parser.add_argument("--loss-steps", type=int, default=300)
    parser.add_argument("--only", choices=("link", "loss"))
    options = parser.parse_args()
    OUTPUT.mkdir(parents=True, exist_ok=True)
    text = OUTPUT / "text.txt"
    text.write_text(subprocess.run(["bible", "-f", "gen1:1-rev22:21"], check=True, capture_output=True, text=True).stdout)
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
