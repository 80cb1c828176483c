"""A slow disk or a suspended job is not reported as a hang."""

import json
import os
import re
import signal
import subprocess
import time
import unittest

from dtrain_harness import SideBySide, free_port
from dtrun_harness import LIMIT, DtrunTest, family, wait_until
from messages import assert_names

DTRAIN = os.environ["DTRAIN_BINARY_DIR"] + "/bin/dtrain"
HANG_TIMEOUT = 2  # seconds
DELAY = 2 * HANG_TIMEOUT
CALLS = "fsync,fdatasync,openat,newfstatat,write,rename"


class SlowTest(DtrunTest):
    def setUp(self):
        super().setUp()
        self.run_dir = self.folder / "run"
        (self.folder / "text").write_bytes(bytes(32 + i * i % 91 for i in range(20000)))

    def words(self, *options):
        return (DTRAIN, "train", "--data", str(self.folder / "text"), "--run-dir", str(self.run_dir), "--layers", "2", "--width", "32",
                "--heads", "2", "--neurons", "64", "--seq-len", "32", "--microbatch", "2", "--threads", "1", "--strategy", "ddp",
                "--log-every", "0", "--tensorboard", "off", *options)

    def slow(self, path, *options, calls=CALLS, when="1", delay=DELAY):
        """Trains on two ranks whose calls that touch `path`, the first of each thread or `when`, take `delay`."""
        return self.start("--hang-timeout", str(HANG_TIMEOUT), "-n", "2", "--", "strace", "-f", "-qq", "-o", "/dev/null", "-P", str(path),
                          "-e", f"trace={calls}", "-e", f"inject={calls}:delay_enter={delay}000000:when={when}",
                          *self.words(*options))

    def events(self):
        return [json.loads(line) for line in (self.run_dir / "metrics.jsonl").read_text().splitlines()]

    def wait_for_training(self):
        """Returns the run's metrics.jsonl."""
        metrics = self.run_dir / "metrics.jsonl"
        wait_until(lambda: metrics.exists() and metrics.read_text().count('"step"') > 20, "training", limit=3 * LIMIT)
        return metrics

    def ends(self, job, status=0):
        _, error = job.communicate(timeout=8 * LIMIT)
        self.assertEqual(job.returncode, status, error)
        self.assert_nothing_left()
        return error


class SlowDisk(SideBySide, SlowTest):
    def check_the_last_save(self):
        checkpoint = self.run_dir / "checkpoints" / "step-3"
        begin = time.monotonic()
        self.ends(self.slow(self.run_dir / "checkpoints", "--steps", "3", "--checkpoint-every", "3"))
        self.assertGreater(time.monotonic() - begin, DELAY)
        self.assertTrue((checkpoint / "manifest.json").exists())
        self.assertTrue((self.run_dir / "final" / "model.safetensors").exists())

    def check_a_line_of_metrics(self):
        self.ends(self.slow(self.run_dir / "metrics.jsonl", "--steps", "3", "--checkpoint-every", "none"))
        self.assertEqual([event["step"] for event in self.events() if "grad_norm" in event], [1, 2, 3])

    def check_each_line_of_metrics(self):
        error = self.ends(self.slow(self.run_dir / "metrics.jsonl", "--steps", "100", "--checkpoint-every", "none", "--val-fraction", "0",
                                    "--lr", "1e30", "--on-nonfinite", "skip", "--max-skipped", "2", calls="write", when="1+"), 7)
        assert_names(error, "3", "--max-skipped 2")
        # dtrun may end rank 0 when the other one has failed, too: before or after its last line, "failure".
        self.assertEqual([event.get("event", event.get("step")) for event in self.events()][:7],
                         ["start", 1, "error", 2, "error", 3, "memory"])

    def check_the_first_line_of_metrics_takes_longer_than_a_collective_may(self):
        self.ends(self.slow(self.run_dir / "metrics.jsonl", "--steps", "3", "--checkpoint-every", "none", "--comm-timeout", "8",
                            calls="openat", delay=12))
        self.assertEqual([event["step"] for event in self.events() if "grad_norm" in event], [1, 2, 3])

    def check_a_stop(self):
        job = self.slow(self.run_dir / "checkpoints", "--steps", "100000000", "--checkpoint-every", "100000000")
        self.wait_for_training()
        job.send_signal(signal.SIGTERM)
        self.ends(job, 9)
        self.assertEqual(len(list((self.run_dir / "checkpoints").glob("step-*"))), 1)

    def check_a_save_that_does_not_end_says_so(self):
        jobs = {}
        for folder, name, doing in (("checkpoints", "step-3", "committing"), ("final", "model.safetensors", "writing")):
            self.run_dir = self.folder / f"run-{folder}"
            path = self.run_dir / folder
            job = self.start("-n", "2", "--", "strace", "-f", "-qq", "-o", "/dev/null", "-P", str(path), "-e", "trace=fsync",
                             "-e", "inject=fsync:delay_enter=65000000", *self.words("--steps", "3", "--checkpoint-every", "3"))
            jobs[job] = rf"warning: rank 0 has been {doing} {path}/{name} for 1 min"
        for job, line in jobs.items():
            _, error = job.communicate(timeout=8 * LIMIT)
            self.assertEqual(job.returncode, 0, error)
            self.assertEqual(len(re.findall(line, error)), 1, error)


class Suspension(SlowTest):

    def test_sigstop_and_sigcont_of_all_processes_in_any_order(self):
        nodes = ("--emulate-nodes", "2", "--heartbeat-timeout", "2")
        for stopped, continued, options in (("ranks", "dtrun", ()), ("dtrun", "ranks", ()), ("ranks", "dtrun", nodes)):
            with self.subTest(stopped=stopped, continued=continued, options=options):
                self.run_dir = self.folder / f"run-{stopped}-{continued}-{len(options)}"
                job = self.start("--hang-timeout", "1", *options, "-n", "2", "--",
                                 *self.words("--steps", "100000000", "--checkpoint-every", "none"))
                metrics = self.wait_for_training()
                processes = list(family(job.pid))  # dtrun first
                for pid in processes if stopped == "dtrun" else reversed(processes):
                    os.kill(pid, signal.SIGSTOP)
                    time.sleep(0.05)
                time.sleep(3)  # longer than both timeouts
                for pid in processes if continued == "dtrun" else reversed(processes):
                    os.kill(pid, signal.SIGCONT)
                    time.sleep(0.05)
                steps = metrics.read_text().count('"step"')
                wait_until(lambda: metrics.read_text().count('"step"') > steps + 20 or job.poll() is not None, "training", limit=3 * LIMIT)
                time.sleep(2)
                self.assertIsNone(job.poll(), "the job has ended")
                job.send_signal(signal.SIGTERM)
                self.ends(job, 9)

    def test_ranks_without_a_launcher_count_only_their_running_time(self):
        for backend, reduction in (("shm", "ordered"), ("gloo", "ordered"), ("gloo", "fast")):
            with self.subTest(backend=backend, reduction=reduction):
                self.run_dir = self.folder / f"run-{backend}-{reduction}"
                place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
                words = self.words("--steps", "100000000", "--checkpoint-every", "none", "--backend", backend, "--reduction", reduction,
                                   "--comm-timeout", "3")
                ranks = [subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                          env=self.environment(RANK=str(rank), **place)) for rank in range(2)]
                metrics = self.wait_for_training()
                for rank in ranks:  # rank 1 waits for rank 0 when it is stopped, and again after the stop
                    rank.send_signal(signal.SIGSTOP)
                    time.sleep(0.2)
                time.sleep(5)
                for rank in reversed(ranks):
                    rank.send_signal(signal.SIGCONT)
                    time.sleep(0.2)
                steps = metrics.read_text().count('"step"')
                wait_until(lambda: metrics.read_text().count('"step"') > steps + 20 or ranks[0].poll() is not None, "training")
                ranks[0].send_signal(signal.SIGTERM)
                errors = [rank.communicate(timeout=LIMIT)[1] for rank in ranks]
                self.assertEqual([9, 9], [rank.returncode for rank in ranks], errors)


if __name__ == "__main__":
    unittest.main()
