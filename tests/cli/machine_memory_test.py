"""The predicted memory of a machine's ranks is compared with what it has, before anything is allocated."""

import os
import pathlib
import re
import resource
import subprocess
import tempfile
import unittest

from dtrain_harness import need_mounts
from messages import assert_names, lines_naming
from train_test import DTRAIN, DTRUN, TrainTest

BIN = pathlib.Path(os.environ["DTRAIN_BINARY_DIR"]) / "bin"
TEXT = pathlib.Path(os.environ["DTRAIN_SOURCE_DIR"]) / "tests/golden/text.bin"
GIANT = ["--width", "1024", "--neurons", "65536", "--global-batch", "4096", "--microbatch", "4096"]  # terabytes
USAGE, MEMORY = 2, 8


class MachineMemory(unittest.TestCase):
    def train(self, *flags, launcher=(), before=None):
        """(status, standard error); no run may begin."""
        with tempfile.TemporaryDirectory(prefix="dtrain-machine-memory-") as folder:
            run = pathlib.Path(folder) / "run"
            command = [*launcher, BIN / "dtrain", "--data", TEXT, "--run-dir", run, *GIANT, *flags]
            result = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, preexec_fn=before)
            self.assertFalse((run / "metrics.jsonl").exists())
        return result.returncode, result.stderr

    def tebibytes(self, error, subject):
        """Returns the prediction in the one line that refuses."""
        lines = [line for line in error.splitlines() if "dtrain: error:" in line]
        for line in lines:
            self.assertEqual(line.split("dtrain: error: ")[1], lines[0].split("dtrain: error: ")[1])
        found = re.search(rf"error: {subject} .*?([\d.]+) TiB .*, and [\d.]+ \wiB .*?\((.+?)\)", lines[0])
        self.assertIsNotNone(found, error)
        self.assertRegex(lines[0], r": [\w' ]+ takes? the most, [\d.]+ [TG]iB; use ")
        self.assertIn("--memory-limit", lines[0])
        return float(found[1])

    def test_a_model_beyond_the_machine_is_refused_with_the_flags_that_help(self):
        status, error = self.train()
        self.assertEqual(status, USAGE, error)
        self.assertGreater(self.tebibytes(error, "this process"), 1)
        status, error = self.train("--recompute", "level")
        self.assertEqual(status, USAGE, error)

    def test_a_model_too_large_for_this_machine_is_rejected_with_the_ranks_that_fit(self):
        status, error = self.train("--levels", "24", "--width", "2048", "--tie-levels", "off", "--global-batch", "64", "--microbatch", "1")
        self.assertEqual(status, USAGE, error)
        self.assertRegex(error, r"[\d.]+ [GT]iB; use --strategy (fsdp|tp) .*on \d+ ranks \([\d.]+ [GM]iB .*\d+ machines")

    def test_the_ranks_of_a_machine_count_together(self):
        one = self.tebibytes(self.train("--microbatch", "2048")[1], "this process")
        for launcher, strategy in (((BIN / "dtrun", "-n", "2", "--"), "ddp"), ((), "dp")):
            status, error = self.train("--microbatch", "2048", "--strategy", strategy, launcher=launcher)
            self.assertEqual(status, USAGE, error)
            two = self.tebibytes(error, r"the 2 ranks [^(]*\(0 to 1\)")
            self.assertAlmostEqual(two / one, 2, delta=0.1)

    def test_a_limit_of_the_user_counts_instead_and_running_out_names_what_helps(self):
        def little_room():
            resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))

        status, error = self.train("--memory-limit", "1000TiB", before=little_room)
        self.assertEqual(status, MEMORY, error)
        for part in ("error: out", "--recompute level", "--microbatch", "TiB predicted"):
            self.assertIn(part, error)
        self.assertEqual(lines_naming(error, "error: this process"), [])


class Containers(TrainTest):
    def test_ranks_in_two_containers_of_a_machine_are_not_counted_against_the_memory_of_one(self):
        need_mounts(self)
        alike = ("--backend", "gloo", "--microbatch", "1")  # what a container may change
        self.ddp(*alike, steps=1)
        need = sum(self.metrics()[0]["memory_predicted_bytes"].values())
        meminfo = self.root / "meminfo"  # room for one and a half ranks, as a container's own /proc may show it
        meminfo.write_text(f"MemTotal: 99999999 kB\nMemAvailable: {need * 3 // 2 // 1024} kB\n")
        inside = ["unshare", "-m", "sh", "-c", 'mount --bind "$0" /proc/meminfo; exec "$@"', str(meminfo)]
        rank = [DTRAIN, "--strategy", "ddp", *self.arguments(*alike, "--overwrite", steps=1)]
        result = self.run_command([*inside, DTRUN, "-n", "2", "--", *rank], 2)
        assert_names(result.stderr, "2 ranks", "0 to 1")
        self.run_command([DTRUN, "-n", "2", "--", *inside, *rank])


if __name__ == "__main__":
    unittest.main()
