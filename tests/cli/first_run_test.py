"""dtrain --data FILE and nothing else: a small model, a run folder of its own, and how to get more."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import termios
import unittest

from dtrain_harness import DTRAIN, GOLDEN, SOURCE, USAGE, FolderTest, launched, run
from messages import lines_naming

STOPPED = 9


class FirstRun(FolderTest):
    def setUp(self):
        super().setUp()
        (self.folder / "my book.txt").write_bytes((GOLDEN / "text.bin").read_bytes())

    def run_here(self, *command, **options):
        return run(*command, cwd=self.folder, **options)

    def train(self, *flags, status=0):
        return self.run_here(DTRAIN, "--data", "my book.txt", "--steps", "1", "--threads", "1", *flags, status=status).stderr

    def runs(self):
        return sorted(path.name for path in (self.folder / "runs").glob("*"))

    def test_it_is_small_says_so_and_makes_a_folder_of_its_own(self):
        error = self.train()
        self.assertEqual(self.runs(), ["my book-1"])
        run = self.folder / "runs" / "my book-1"
        for name in ("config.json", "metrics.jsonl", "final/model.safetensors"):
            self.assertTrue((run / name).is_file(), name)
        config = json.loads((run / "config.json").read_text())
        self.assertEqual(config["resolved"]["run"]["dir"], "runs/my book-1")
        self.assertIn("runs/my book-1", error)
        self.assertIn("configs/experiments/", error)
        self.assertIn(", 425,984 parameters\n", error)
        again = self.train("--width", "32")
        self.assertEqual(self.runs(), ["my book-1", "my book-2"])
        self.assertNotIn("configs/experiments/", again)

    def test_the_start_table_is_broken_between_words_on_a_narrow_terminal(self):
        columns = 50
        whole = [line.split() for line in self.train("--width", "32", "--run-dir", "plain").splitlines()]
        terminal, end = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        process = subprocess.Popen([DTRAIN, "--data", "my book.txt", "--steps", "1", "--threads", "1", "--width", "32",
                                    "--run-dir", "narrow"], cwd=self.folder, stdout=end, stderr=end,
                                   env={**os.environ, "MKL_CBWR": "COMPATIBLE"})  # stands behind a word longer than a row
        os.close(end)
        shown = b""
        try:
            while part := os.read(terminal, 65536):
                shown += part
        except OSError:  # how a terminal tells that its other end is closed
            pass
        os.close(terminal)
        self.assertEqual(process.wait(timeout=60), 0, shown)
        lines = shown.decode().split("\x1b")[0].splitlines()
        table = lines[next(i for i, line in enumerate(lines) if line.startswith("model")):]
        self.assertEqual([line for line in table if len(line) >= columns and " " in line.strip()], [])
        settings = next(line for line in whole if line[:2] == ["settings", "that"])
        self.assertIn(" ".join(settings[:-1]), " ".join(" ".join(table).split()))

    def test_the_defaults_are_the_sizes_of_mini(self):
        def resolved(*flags):
            return json.loads(self.run_here(DTRAIN, "--print-config", *flags).stdout)

        plain, mini = resolved(), resolved("--config", SOURCE / "configs/experiments/mini.json")
        for group in ("model", "data", "batch"):
            self.assertEqual(plain[group], mini[group])
        for key in ("steps", "lr"):
            self.assertEqual(plain["train"][key], mini["train"][key])

    def added(self, *flags):
        """The demo defaults of a command."""
        error = self.run_here(DTRAIN, "--threads", "1", "--time-limit", "0.001s", *flags, status=STOPPED).stderr
        (line,) = lines_naming(error, "demo defaults")
        return re.search(r"defaults: ([^;]*);", line).group(1)

    def test_data_alone_gets_flags_that_fit_it(self):
        every = "--checkpoint-every 100 --sample-every 200"  # and more for a text to take validation from
        self.assertEqual(self.added("--data", "my book.txt"), every)
        self.assertEqual(self.added("--data", "my book.txt", "--memory-limit", "1GiB"), every.removesuffix(" --sample-every 200"))
        self.run_here(DTRAIN, "data", "prepare", "my book.txt", "--output", "book.dtok")
        self.assertEqual(self.added("--data", "book.dtok:1,my book.txt:1"), every)
        (self.folder / "t.bin").write_bytes(struct.pack("<400H", *(i % 65 for i in range(400))))
        self.run_here(DTRAIN, "data", "prepare", "t.bin", "--vocab", "65", "--output", "t.tokens")
        self.assertEqual(self.added("--data", "t.tokens"), "--checkpoint-every 100")

    def test_ranks_share_one_folder(self):
        self.run_here(*launched(2), "--strategy", "ddp", "--data", "my book.txt", "--steps", "1",
                      "--checkpoint-every", "1")
        self.assertEqual(self.runs(), ["my book-1"])
        checkpoints = self.folder / "runs" / "my book-1" / "checkpoints"
        self.assertEqual([path.name for path in checkpoints.glob("step-*")], ["step-1"])

    def test_a_stopped_run_names_its_folder_for_going_on(self):
        error = self.train("--time-limit", "0.001s", "--steps", "9", status=STOPPED)
        self.assertIn("to continue, rerun with --run-dir 'runs/my book-1' --resume auto", error)
        self.train("--steps", "2", "--run-dir", "runs/my book-1", "--resume", "auto")
        self.assertEqual(self.runs(), ["my book-1"])

    def test_what_only_a_named_folder_can_mean_asks_for_one(self):
        for flags in (("--resume", "auto"), ("--overwrite",)):
            error = self.train(*flags, status=USAGE)
            self.assertIn(f"{' '.join(flags)} needs --run-dir", error)
        (self.folder / "runs").write_text("no folder")
        self.assertIn("runs", self.train(status=USAGE))


if __name__ == "__main__":
    unittest.main()
