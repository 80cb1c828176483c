"""A restart by dtrun waits for what the first attempt has read: a missing path is on a mount that is gone. At a first start it is
bad input."""

import errno
import os
import shutil
import subprocess
import unittest

from dtrain_harness import SideBySide, mount_tmpfs
from messages import assert_names
from resume_test import EVERY_STEP
from storage_test import AGAIN, StorageTest
from train_test import DTRAIN, DTRUN, LIMIT

USAGE, DATA = 2, 3


class Inputs(SideBySide, StorageTest):
    """Jobs whose first attempt is killed while it trains."""

    def setUp(self):
        super().setUp()
        self.input = self.root / (self.run_dir.name + "-input")
        self.away = self.root / (self.run_dir.name + "-away")
        self.errors = self.root / (self.run_dir.name + "-errors")

    def restarted(self, *flags, second, third=":", restarts=1, ranks=1, status=0, arguments=(), then=()):
        script = self.killed_at_write(6, second, third)
        command = [DTRUN, "-n", str(ranks), "--max-restarts", str(restarts), "--restart-backoff", "0.02", "--", script, *then,
                   DTRAIN, *map(str, arguments or self.arguments(*EVERY_STEP, *flags))]
        with self.errors.open("w") as errors:
            result = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=errors, timeout=3 * LIMIT, check=False)
        text = self.errors.read_text()
        self.assertEqual(result.returncode, status, text)
        return text

    def once_missed(self, command):
        """A shell command that runs beside the attempt once the attempt waits."""
        return f"(until grep -q '{AGAIN}' {self.errors}; do sleep 0.1; done; {command}) &"

    def returns_in_time(self, *flags, steps=(1, 2, 3, 4), **options):
        """The input is missing when the restart begins."""
        back = self.once_missed(f"mv {self.away} {self.input}")
        move = f"mv {self.input} {self.away} 2> {self.log}.mv"  # a rank does
        stderr = self.restarted(*flags, second=f"{move}; {back}", **options)
        self.assertIn(AGAIN, stderr)
        self.assertIn(str(self.input), stderr)
        self.assertEqual([line["step"] for line in self.lines() if "loss" in line], list(steps))

    def is_bad_input(self, *flags, status):
        """Without the input a first start ends at once, even under a launcher that restarts jobs."""
        self.run_dir = self.root / (self.run_dir.name + "-first")
        result = self.run_command([DTRUN, "-n", "1", "--max-restarts", "1", "--", DTRAIN, *self.arguments(*flags)], status)
        self.assertNotIn(AGAIN, result.stderr)
        self.assertNotIn("restart 1 of 1", result.stderr)

    def check_training_data(self):
        shutil.copy(self.text, self.input)
        self.returns_in_time("--data", self.input)
        self.input.unlink()
        self.is_bad_input("--data", self.input, status=DATA)

    def check_validation_data(self):
        shutil.copy(self.text, self.input)
        flags = ("--val-fraction", "0", "--val-data", self.input)
        self.returns_in_time(*flags)
        self.input.unlink()
        self.is_bad_input(*flags, status=DATA)

    def check_the_folder_of_the_data(self):
        self.input.mkdir()
        shutil.copy(self.text, self.input)
        self.returns_in_time("--data", self.input / self.text.name)

    def check_a_configuration(self):
        name = self.run_dir.name
        for flag, text in (("--config", '{"train": {"weight_decay": 0.05}}'), ("--deepspeed-config", '{"gradient_clipping": 0.5}')):
            with self.subTest(flag):
                self.run_dir = self.root / (name + flag)
                self.input.write_text(text)
                self.returns_in_time(flag, self.input)
                self.input.unlink()
                self.is_bad_input(flag, self.input, status=USAGE)

    def check_the_folder_of_what_is_offloaded(self):
        self.input.mkdir()
        self.returns_in_time("--offload", f"disk:{self.input}")
        self.input.rmdir()
        self.is_bad_input("--offload", f"disk:{self.input}", status=USAGE)

    def check_data_of_which_a_share_is_held_out_by_default(self):
        self.input.write_bytes(self.text.read_bytes() * (1 + 200_000 // self.text.stat().st_size))
        arguments = self.arguments(*EVERY_STEP, "--eval-every", "2", "--data", self.input)
        position = arguments.index("--val-fraction")
        del arguments[position:position + 2]
        self.returns_in_time(arguments=arguments)
        self.assertTrue(any(line.get("event") == "eval" for line in self.lines()))

    def check_each_file_of_a_mixture(self):
        shutil.copy(self.text, self.input)
        self.returns_in_time("--val-fraction", "0", "--data", f"{self.text}:1,{self.input}:2")

    def check_the_run_that_another_one_begins_with(self):
        """The settings come from that run."""
        run, self.run_dir = self.run_dir, self.input
        self.single(*EVERY_STEP, steps=1)
        self.run_dir = run
        arguments = ["--resume", self.input, "--run-dir", run, "--steps", "4", "--checkpoint-every", "0"]
        self.returns_in_time(steps=(2, 3, 4), arguments=arguments, ranks=2)

    def check_weights_are_awaited_until_there_is_a_checkpoint(self):
        run, self.run_dir = self.run_dir, self.input
        self.single(steps=1)
        self.run_dir = run
        self.returns_in_time("--init-from", self.input, "--checkpoint-every", "0")
        self.run_dir = self.root / "with-checkpoints"
        stderr = self.restarted("--init-from", self.input, second=f"mv {self.input} {self.away}")
        self.assertNotIn(AGAIN, stderr)

    def check_data_that_the_command_replaces_is_not_awaited(self):
        origin = self.root / "origin.json"
        origin.write_text(f'{{"data": {{"train": "{self.input}"}}, "model": {{"vocab": 256}}}}')
        self.assertNotIn(AGAIN, self.restarted("--config", origin, second=":"))

    def check_what_no_attempt_has_read_is_not_awaited(self):
        """A second program of a script, which the first attempt did not reach."""
        script = self.script(f'"$@" && exec {DTRAIN} --data {self.input} --run-dir {self.root}/second\n', "both")
        self.assertNotIn(AGAIN, self.restarted(second=":", restarts=2, status=DATA, then=(script,)))

    def check_data_that_stays_away_ends_an_attempt_that_restarts(self):
        shutil.copy(self.text, self.input)
        stderr = self.restarted("--data", self.input, second=f"mv {self.input} {self.away}", third=f"mv {self.away} {self.input}",
                                restarts=2)
        assert_names(stderr, "attempt 1", "rank 0", "status 6")
        self.assertEqual([line["step"] for line in self.lines() if "loss" in line], [1, 2, 3, 4])

    def check_room_for_what_is_offloaded(self):
        mount_tmpfs(self, self.input, "size=4m")
        fill = f"dd if=/dev/zero of={self.input}/full bs=1M 2> /dev/null"
        flags = ("--offload", f"disk:{self.input}")
        stderr = self.restarted(*flags, second=f"{fill}; {self.once_missed(f'rm {self.input}/full')}")
        assert_names(stderr, f"'{self.input}'", os.strerror(errno.ENOSPC), AGAIN)
        self.run_dir = self.root / "no-room"
        stderr = self.restarted(*flags, second=fill, third=f"rm {self.input}/full", restarts=2)
        assert_names(stderr, "attempt 1", "rank 0", "status 6")
        subprocess.run(["sh", "-c", fill], check=False)
        self.is_bad_input(*flags, status=USAGE)


if __name__ == "__main__":
    unittest.main()
