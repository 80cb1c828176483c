"""A restart by dtrun waits for what the first attempt has read: a missing path lies on a mount that is away. At a first start it is
bad input."""

import pathlib
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from storage_test import AGAIN, StorageTest  # noqa: E402
from train_test import DTRAIN, DTRUN, LIMIT  # noqa: E402

USAGE, DATA = 2, 3
EVERY_STEP = ("--checkpoint-every", "1")


class Inputs(StorageTest):
    """Jobs whose first attempt is killed while it trains."""

    def setUp(self):
        super().setUp()
        self.input = self.root / (self.run_dir.name + "-input")
        self.away = self.root / (self.run_dir.name + "-away")

    def restarted(self, *flags, second, third=":", restarts=1, status=0):
        script = self.root / (self.run_dir.name + ".sh")
        kill = " ".join(map(str, ["strace", "-f", "-o", self.log, "-P", self.run_dir / "metrics.jsonl", "-e", "trace=write",
                                  "-e", "inject=write:signal=SIGKILL:when=6"]))
        script.write_text(f'#!/bin/sh\ncase $TORCHELASTIC_RESTART_COUNT in\n0) exec {kill} "$@" ;;\n1) {second} ;;\n2) {third} ;;\n'
                          'esac\nexec "$@"\n')
        script.chmod(0o755)
        command = [DTRUN, "-n", "1", "--max-restarts", str(restarts), "--restart-backoff", "0.02", "--", script, DTRAIN,
                   *map(str, self.arguments(*EVERY_STEP, *flags))]
        result = subprocess.run(command, capture_output=True, text=True, timeout=3 * LIMIT, check=False)
        self.assertEqual(result.returncode, status, result.stderr)
        return result.stderr

    def returns_in_time(self, *flags):
        """The input is away at the restart for 2 s."""
        stderr = self.restarted(*flags, second=f"mv {self.input} {self.away}; (sleep 2; mv {self.away} {self.input}) &")
        self.assertIn(AGAIN, stderr)
        self.assertIn(str(self.input), stderr)
        self.assertEqual([line["step"] for line in self.lines() if "loss" in line], [1, 2, 3, 4])

    def is_bad_input(self, *flags, status):
        """Without the input a first start ends at once, also by a launcher that would restart it."""
        self.run_dir = self.root / (self.run_dir.name + "-first")
        result = self.run_command([DTRUN, "-n", "1", "--max-restarts", "1", "--", DTRAIN, *self.arguments(*flags)], status)
        self.assertNotIn(AGAIN, result.stderr)
        self.assertNotIn("restart 1 of 1", result.stderr)

    def test_training_data(self):
        shutil.copy(self.text, self.input)
        self.returns_in_time("--data", self.input)
        self.input.unlink()
        self.is_bad_input("--data", self.input, status=DATA)

    def test_validation_data(self):
        shutil.copy(self.text, self.input)
        flags = ("--val-fraction", "0", "--val-data", self.input)
        self.returns_in_time(*flags)
        self.input.unlink()
        self.is_bad_input(*flags, status=DATA)

    def test_the_folder_of_the_data(self):
        self.input.mkdir()
        shutil.copy(self.text, self.input)
        self.returns_in_time("--data", self.input / self.text.name)

    def test_a_configuration(self):
        self.input.write_text('{"train": {"weight_decay": 0.05}}')
        self.returns_in_time("--config", self.input)
        self.input.unlink()
        self.is_bad_input("--config", self.input, status=USAGE)

    def test_the_folder_of_what_is_offloaded(self):
        self.input.mkdir()
        self.returns_in_time("--offload", f"disk:{self.input}")
        self.input.rmdir()
        self.is_bad_input("--offload", f"disk:{self.input}", status=USAGE)

    def test_data_that_stays_away_ends_an_attempt_that_restarts(self):
        shutil.copy(self.text, self.input)
        stderr = self.restarted("--data", self.input, second=f"mv {self.input} {self.away}", third=f"mv {self.away} {self.input}",
                                restarts=2)
        self.assertIn("attempt 1: rank 0 exited with status 6", stderr)
        self.assertEqual([line["step"] for line in self.lines() if "loss" in line], [1, 2, 3, 4])

    def mount_disk(self):
        self.input.mkdir()
        mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", self.input], capture_output=True, text=True, check=False)
        if mount.returncode != 0:
            self.skipTest("needs root: to mount a small file system: " + mount.stderr.strip())
        self.addCleanup(subprocess.run, ["umount", "-l", self.input], check=True)

    def test_room_for_what_is_offloaded(self):
        self.mount_disk()
        fill = f"dd if=/dev/zero of={self.input}/full bs=1M 2> /dev/null"
        flags = ("--offload", f"disk:{self.input}")
        stderr = self.restarted(*flags, second=f"{fill}; (sleep 2; rm {self.input}/full) &")
        self.assertIn(f"'{self.input}': No space left on device; {AGAIN}", stderr)
        self.run_dir = self.root / "no-room"
        stderr = self.restarted(*flags, second=fill, third=f"rm {self.input}/full", restarts=2)
        self.assertIn("attempt 1: rank 0 exited with status 6", stderr)
        subprocess.run(["sh", "-c", fill], check=False)
        self.is_bad_input(*flags, status=USAGE)


if __name__ == "__main__":
    unittest.main()
