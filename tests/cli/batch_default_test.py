"""Default batch settings, and what a start reports about epochs and learning rates."""

import json
import re
import shutil
import subprocess
import unittest

from dtrain_harness import DTRAIN, GOLDEN, USAGE, FolderTest, launched, metrics_of, run
from messages import assert_names, lines_naming

TEXT = GOLDEN / "text.bin"
SMALL = ("--levels", "1", "--width", "16", "--heads", "2", "--neurons", "16", "--seq-len", "16", "--threads", "1", "--log-every", "0", "--steps", "1",
         "--sample-every", "0")
# Activations dominate its memory.
WIDE = ("--levels", "4", "--width", "32", "--heads", "2", "--neurons", "256", "--seq-len", "128", "--threads", "1", "--log-every", "0", "--steps", "1",
        "--global-batch", "16", "--sample-every", "0", "--data", TEXT)


def batch_of(run_dir):
    return json.loads((run_dir / "config.json").read_text())["resolved"]["batch"]


class Microbatch(FolderTest):
    def train(self, name, *flags, ranks=1, **options):
        run_dir = self.folder / name
        return run_dir, run(*launched(ranks, *WIDE, "--run-dir", run_dir, *flags), **options).stderr

    def predicted(self, microbatch, ranks=1):
        """Predicted bytes of a rank."""
        run_dir, _ = self.train(f"told-{microbatch}-{ranks}", "--microbatch", microbatch, ranks=ranks)
        return sum(metrics_of(run_dir)[0]["memory_predicted_bytes"].values())

    def test_it_fits_the_limit_on_all_ranks_alike(self):
        run_dir, error = self.train("free")
        self.assertEqual(batch_of(run_dir)["microbatch"], 8)
        self.assertEqual(lines_naming(error, "microbatch 8", "memory"), [])
        for ranks in (1, 2):
            run_dir, error = self.train(f"limited-{ranks}", "--memory-limit", self.predicted(2, ranks), ranks=ranks)
            self.assertEqual(batch_of(run_dir), {"global": 16, "microbatch": 2, "grad_accum": 8 // ranks})
            self.assertEqual(len(lines_naming(error, "microbatch 2", "8", "memory")), 1, error)
        # A limit that no microbatch meets is rejected.
        self.train("nothing", "--memory-limit", "100kB", status=USAGE)

    def test_it_fits_the_machine(self):
        if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("needs namespaces: a rank that sees another memory")
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

    def test_a_step_of_more_samples_than_there_are_triggers_a_warning(self):
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
        lines = [line for line in error.splitlines() if re.search(r" from \S+ in step \d+ to ", line)]
        if not lines:
            return None
        self.assertEqual(len(lines), 1)
        return [float(number) for number in re.search(r"from (\S+) in step \d+ to (\S+) in step", lines[0]).groups()]

    def test_a_jump_at_a_resume_is_reported_with_both_rates(self):
        for schedule in ("cosine", "wsd"):
            flags = ("--schedule", schedule, "--lr", "1e-2", "--overwrite") + (("--decay-steps", "4") if schedule == "wsd" else ())
            self.train(*flags, "--steps", "4")
            error = self.train("--resume", "auto", "--steps", "8", data=())
            assert_names(error, "train.steps", "8", self.folder / "run")
            before, after = self.rates(error)
            steps = [event for event in metrics_of(self.folder / "run") if "loss" in event]
            self.assertAlmostEqual(before, steps[3]["learning_rate"], delta=0.01 * before)
            self.assertAlmostEqual(after, steps[4]["learning_rate"], delta=0.01 * after)
            self.assertGreater(after, before)

    def test_other_rate_settings_are_reported_only_if_the_rate_changes(self):
        self.train("--lr", "1e-2", "--steps", "2")
        self.assertIsNone(self.rates(self.train("--resume", "auto", "--steps", "4", data=())))
        self.assertEqual(self.rates(self.train("--resume", "auto", "--steps", "5", "--lr", "2e-2", data=())), [0.01, 0.02])


if __name__ == "__main__":
    unittest.main()
