"""A file that training reads is shortened meanwhile: one line that names it, the status of data, and the last checkpoint; no SIGBUS."""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time
import unittest

from data_harness import DataTest
from dtrain_harness import CHECKPOINT, DATA, DTRAIN, DTRUN, GOLDEN, LIMIT, metrics_of
from messages import assert_names, error_line

TEXT = (GOLDEN / "text.bin").read_bytes()
ENDLESS = ["--levels", "1", "--width", "16", "--heads", "1", "--neurons", "16", "--seq-len", "16", "--microbatch", "1", "--threads", "1",
           "--steps", "1000000", "--checkpoint-every", "5", "--tensorboard", "off", "--run-dir", "run"]


class LostData(DataTest):
    def setUp(self):
        super().setUp()
        self.write("book.txt", TEXT)

    def start(self, *command):
        """A process whose training has a checkpoint."""
        process = subprocess.Popen([str(word) for word in command], cwd=self.folder, text=True, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE)
        self.addCleanup(process.__exit__, None, None, None)
        self.addCleanup(process.kill)
        limit = time.monotonic() + LIMIT
        # Any one: the first may be removed again before this looks.
        while not any(path.name.removeprefix("step-").isdigit() for path in self.folder.glob("run/checkpoints/step-*")):
            if process.poll() is not None:
                self.fail(process.communicate()[1])
            self.assertLess(time.monotonic(), limit)
            time.sleep(0.02)
        return process

    def ended(self, process, status):
        _, error = process.communicate(timeout=LIMIT)
        self.assertEqual(process.returncode, status, error)
        return error

    def assert_named(self, error, name, status=DATA):
        """One line of an error."""
        return error_line(error, name)

    def test_training_data(self):
        for flags in ((), ("--strategy", "dp", "--local-ranks", "2")):
            with self.subTest(flags):
                self.addCleanup(shutil.rmtree, self.folder / "run", ignore_errors=True)
                process = self.start(DTRAIN, "--data", "book.txt", *ENDLESS, *flags)
                os.truncate(self.folder / "book.txt", 1000)
                error = self.ended(process, DATA)
                assert_names(self.assert_named(error, "'book.txt'"), "byte 1000", f"{len(TEXT)} bytes")
                step = re.search(r"run/checkpoints/step-(\d+)", error)[1]
                self.assertIn("book.txt", metrics_of(self.folder / "run")[-1]["message"])
                self.write("book.txt", TEXT)
                self.dtrain("--resume", "auto", "--run-dir", "run", "--steps", step)
                shutil.rmtree(self.folder / "run")

    def test_validation_data(self):
        self.write("other.txt", TEXT[:9000])
        process = self.start(DTRAIN, "--data", "book.txt", "--val-data", "other.txt", "--eval-every", "2", *ENDLESS)
        os.truncate(self.folder / "other.txt", 0)
        assert_names(self.assert_named(self.ended(process, DATA), "'other.txt'"), "byte 0")

    def test_of_one_rank_which_dtrun_names(self):
        for rank in "01":
            self.write(f"node{rank}/book.txt", TEXT)
        command = " ".join(["cd node$RANK && exec", str(DTRAIN), "--strategy ddp --data book.txt", *ENDLESS, "--run-dir", f"{self.folder}/run"])
        process = self.start(DTRUN, "-n", "2", "--", "bash", "-c", command)
        os.truncate(self.folder / "node1/book.txt", 1000)
        error = self.ended(process, DATA)
        self.assertRegex(error, r"rank 1 .*status 3")
        assert_names(error, "'book.txt'", "byte 1000")
        self.assertIn("run/checkpoints/step-", error)

    def offloaded(self):
        """A process, and its file of masters and moments."""
        (self.folder / "disk").mkdir(exist_ok=True)
        process = self.start(DTRAIN, "--data", "book.txt", "--offload", "disk:disk", *ENDLESS)
        files = []
        for file in pathlib.Path(f"/proc/{process.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # one that it has closed meanwhile
                if os.readlink(file).startswith(f"{os.path.realpath(self.folder)}/disk/"):
                    files.append(file)
        self.assertTrue(files)
        return process, files

    def test_what_is_offloaded(self):
        if os.geteuid() != 0:
            self.skipTest("needs root: to shorten an unlinked file")
        process, files = self.offloaded()
        with contextlib.suppress(FileNotFoundError):  # once the process has ended
            for file in files:
                os.truncate(file, 0)
        self.assert_named(self.ended(process, CHECKPOINT), "--offload disk:disk")

    def test_other_bus_errors_end_as_before(self):
        process, _ = self.offloaded()
        process.send_signal(signal.SIGBUS)
        self.assertNotIn("--offload", self.ended(process, -signal.SIGBUS))


if __name__ == "__main__":
    unittest.main()
