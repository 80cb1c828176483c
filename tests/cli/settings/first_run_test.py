"""dtrain --data FILE without other flags: a small model, a new run folder, default batch settings, and what a start reports about
epochs and learning rates."""

import fcntl
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import termios
import unittest

from dtrain_harness import DTRAIN, GOLDEN, SOURCE, USAGE, FolderTest, launched, metrics_of, run
from messages import assert_names, lines_naming

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

    def test_it_trains_a_small_model_reports_it_and_creates_a_folder(self):
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

    def test_the_start_table_wraps_between_words_on_a_narrow_terminal(self):
        columns = 50
        whole = [line.split() for line in self.train("--width", "32", "--run-dir", "plain").splitlines()]
        terminal, end = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        process = subprocess.Popen([DTRAIN, "--data", "my book.txt", "--steps", "1", "--threads", "1", "--width", "32",
                                    "--run-dir", "narrow"], cwd=self.folder, stdout=end, stderr=end,
                                   env={**os.environ, "MKL_CBWR": "COMPATIBLE"})  # follows a word longer than a row
        os.close(end)
        shown = b""
        try:
            while part := os.read(terminal, 65536):
                shown += part
        except OSError:  # the other end of the terminal is closed
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

    def test_demo_defaults_depend_on_the_data(self):
        every = "--checkpoint-every 100 --sample-every 200"  # a longer text also gets validation
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

    def test_a_stopped_run_prints_how_to_continue(self):
        error = self.train("--time-limit", "0.001s", "--steps", "9", status=STOPPED)
        self.assertIn("to continue, rerun with --run-dir 'runs/my book-1' --resume auto", error)
        self.train("--steps", "2", "--run-dir", "runs/my book-1", "--resume", "auto")
        self.assertEqual(self.runs(), ["my book-1"])

    def test_resume_auto_and_overwrite_need_a_run_folder(self):
        for flags in (("--resume", "auto"), ("--overwrite",)):
            error = self.train(*flags, status=USAGE)
            self.assertIn(f"{' '.join(flags)} needs --run-dir", error)
        (self.folder / "runs").write_text("no folder")
        self.assertIn("runs", self.train(status=USAGE))


TEXT = GOLDEN / "text.bin"
SMALL = ("--layers", "1", "--width", "16", "--heads", "2", "--neurons", "16", "--seq-len", "16", "--threads", "1", "--log-every", "0", "--steps", "1",
         "--sample-every", "0")
# Activations dominate its memory.
WIDE = ("--layers", "4", "--width", "32", "--heads", "2", "--neurons", "256", "--seq-len", "128", "--threads", "1", "--log-every", "0", "--steps", "1",
        "--global-batch", "16", "--sample-every", "0", "--data", TEXT)


def batch_of(run_dir):
    return json.loads((run_dir / "config.json").read_text())["resolved"]["batch"]


class Microbatch(FolderTest):
    def train(self, name, *flags, ranks=1, **options):
        run_dir = self.folder / name
        return run_dir, run(*launched(ranks, *WIDE, "--run-dir", run_dir, *flags), **options).stderr

    def predicted(self, microbatch, ranks=1):
        """Predicted bytes of a rank."""
        run_dir, _ = self.train(f"given-{microbatch}-{ranks}", "--microbatch", microbatch, ranks=ranks)
        return sum(metrics_of(run_dir)[0]["memory_predicted_bytes"].values())

    def test_it_fits_the_limit_equally_on_all_ranks(self):
        run_dir, error = self.train("free")
        self.assertEqual(batch_of(run_dir)["microbatch"], 8)
        self.assertEqual(lines_naming(error, "microbatch 8", "memory"), [])
        for ranks in (1, 2):
            run_dir, error = self.train(f"limited-{ranks}", "--memory-limit", self.predicted(2, ranks), ranks=ranks)
            self.assertEqual(batch_of(run_dir), {"global": 16, "microbatch": 2, "grad_accum": 8 // ranks})
            self.assertEqual(len(lines_naming(error, "microbatch 2", "8", "memory")), 1, error)
        # A limit that no microbatch satisfies is rejected.
        self.train("nothing", "--memory-limit", "100kB", status=USAGE)

    def test_it_fits_the_machine(self):
        if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("needs namespaces, to simulate less memory")
        meminfo = self.folder / "meminfo"
        meminfo.write_text(f"MemTotal: 99999999 kB\nMemAvailable: {self.predicted(2) * 100 // 79 // 1024 + 1} kB\n")
        run_dir = self.folder / "small-machine"
        run("unshare", "-m", "sh", "-c", 'mount --bind "$0" /proc/meminfo; exec "$@"', meminfo, DTRAIN, *WIDE, "--run-dir", run_dir)
        self.assertEqual(batch_of(run_dir)["microbatch"], 2)

    def test_a_resumed_run_keeps_its_microbatch(self):
        run_dir, _ = self.train("run", "--microbatch", "4", "--steps", "2")
        _, error = self.train("run", "--steps", "4", "--resume", "auto")
        self.assertEqual(batch_of(run_dir)["microbatch"], 4)
        self.assertNotIn("microbatch is", error)
        fork, _ = self.train("fork", "--steps", "4", "--resume", run_dir / "checkpoints/step-2")
        self.assertEqual(batch_of(fork)["microbatch"], 4)
        shutil.copytree(run_dir / "checkpoints/step-2", self.folder / "moved/step-2")  # a checkpoint without its run
        (self.folder / "c.json").write_text("{}")
        moved, _ = self.train("moved-on", "--steps", "3", "--config", self.folder / "c.json", "--resume", self.folder / "moved/step-2")
        self.assertEqual(batch_of(moved)["microbatch"], 4)
        # A microbatch that does not divide the ranks' shares is replaced.
        odd, _ = self.train("odd", "--microbatch", "16", "--steps", "1")
        self.train("odd", "--steps", "2", "--resume", "auto", ranks=2)
        self.assertEqual(batch_of(odd), {"global": 16, "microbatch": 8, "grad_accum": 1})


class Start(FolderTest):
    def train(self, *flags):
        return run(DTRAIN, *SMALL, "--run-dir", self.folder / "run", "--overwrite", *flags).stderr

    def test_thousands_of_epochs_trigger_a_warning_per_file(self):
        (self.folder / "short.txt").write_bytes(TEXT.read_bytes()[:16 * 2 + 1])  # two samples
        short = self.folder / "short.txt"
        hurried = ("--steps", "3", "--global-batch", "1024", "--time-limit", "0.001s")
        for flags, times, name in ((("--data", short), 1536, short), (("--data", f"{TEXT}:1,{short}:3"), 1152, short)):
            error = run(DTRAIN, *SMALL, "--run-dir", self.folder / "run", "--overwrite", *flags, *hurried, status=9).stderr
            (line,) = [line for line in error.splitlines() if "will memorise" in line]
            self.assertIn("dtrain: warning: ", line)
            self.assertIn(f"{name} {times} times", line)
        self.assertNotIn("will memorise", self.train("--data", TEXT))

    def test_a_batch_larger_than_the_data_triggers_a_warning(self):
        text = self.folder / "few.txt"
        text.write_bytes(TEXT.read_bytes()[:16 * 8 + 1])  # eight samples
        for batch, times in ((8, None), (12, "1.5"), (32, "4.0")):
            lines = lines_naming(self.train("--data", text, "--global-batch", batch), "warning", f"--global-batch {batch}")
            self.assertEqual(len(lines), 0 if times is None else 1, lines)
            if times:
                assert_names(lines[0], "8 samples", times)

    def test_verbose_shows_the_epochs_of_each_file_of_a_mixture(self):
        for name, samples in (("a.txt", 100), ("b.txt", 40)):
            (self.folder / name).write_bytes(TEXT.read_bytes()[:16 * samples + 1])
        a, b = self.folder / "a.txt", self.folder / "b.txt"
        error = self.train("--data", f"{a}:3,{b}:1", "--steps", "5", "--global-batch", "16", "--verbose")
        self.assertIn(f"{a}: 100 samples, 0.60 epochs", error)
        self.assertIn(f"{b}: 40 samples, 0.50 epochs", error)
        self.assertNotIn("100 samples, ", self.train("--data", a, "--verbose"))


class LearningRate(FolderTest):
    def train(self, *flags, data=("--data", TEXT)):
        return run(DTRAIN, *(SMALL if data else ()), *data, "--run-dir", self.folder / "run", *flags).stderr

    def rates(self, error):
        rows = re.findall(r"^  learning rate +(\S+) \(step \d+\) +(\S+) \(step \d+\)$", error, re.MULTILINE)
        if not rows:
            return None
        self.assertEqual(len(rows), 1)
        return [float(number) for number in rows[0]]

    def test_a_jump_at_a_resume_is_reported_with_both_rates(self):
        for schedule in ("cosine", "wsd"):
            flags = ("--schedule", schedule, "--lr", "1e-2", "--overwrite") + (("--decay-steps", "4") if schedule == "wsd" else ())
            self.train(*flags, "--steps", "4")
            error = self.train("--resume", "auto", "--steps", "8", data=())
            assert_names(error, "train.steps", "4", "8")
            before, after = self.rates(error)
            steps = [event for event in metrics_of(self.folder / "run") if "loss" in event]
            self.assertEqual(before, 1e-3)  # the end of the shorter schedule
            self.assertAlmostEqual(after, steps[4]["learning_rate"], delta=0.01 * after)
            self.assertGreater(after, before)

    def test_other_rate_settings_are_reported_only_if_the_rate_changes(self):
        self.train("--lr", "1e-2", "--steps", "2", "--schedule", "constant")
        self.assertIsNone(self.rates(self.train("--resume", "auto", "--steps", "4", data=())))
        self.assertEqual(self.rates(self.train("--resume", "auto", "--steps", "5", "--lr", "2e-2", data=())), [0.01, 0.02])


if __name__ == "__main__":
    unittest.main()
