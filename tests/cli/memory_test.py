"""Memory as a user meets it: predicted, measured, limited; levels that run again change no bit."""

import re
import unittest

from dtrain_harness import front_end_alone, make_folder, run
from train_test import TrainTest

SIZES = ["--levels", "4", "--width", "64", "--heads", "4", "--neurons", "256", "--seq-len", "64", "--global-batch", "8",
         "--microbatch", "8"]


class Memory(TrainTest):
    def train(self, name, *flags, status=0):
        """(start line, peak in bytes, what the table says of recomputing, the model's bytes)"""
        folder = self.run_dir / name
        result = self.single(*SIZES, *flags, status=status, run_dir=folder)
        if status != 0:
            return result.stderr
        lines = self.metrics(folder)
        memory = next(line for line in lines if line.get("event") == "memory")
        self.assertEqual(list(memory), ["event", "step", "predicted_bytes", "peak_bytes"])
        self.assertEqual(memory["step"], 3)
        self.assertEqual(memory["predicted_bytes"], sum(lines[0]["memory_predicted_bytes"].values()))
        self.assertRegex(result.stderr, r"\nmemory: predicted [^,]+, measured peak [^ ]+ \w+ \(predicted/measured \d+%\)\n")
        self.assertLess(abs(memory["predicted_bytes"] / memory["peak_bytes"] - 1), 0.05)
        policy = re.search(r"\nrecompute +(.*)\n", result.stderr)[1]
        return memory["predicted_bytes"], memory["peak_bytes"], policy, (folder / "final/model.safetensors").read_bytes()

    def test_auto_keeps_three_limits_with_three_policies_and_the_same_bits(self):
        none, level = self.train("none"), self.train("level", "--recompute", "level")
        self.assertLess(level[1], none[1])
        limits = [none[0], (none[0] + level[0]) // 2, level[0]]
        runs = [self.train(str(limit), "--recompute", "auto", "--memory-limit", str(limit)) for limit in limits]
        for limit, (predicted, peak, _, model) in zip(limits, runs):
            self.assertLessEqual(predicted, limit)
            self.assertLessEqual(peak, limit)
            self.assertEqual(model, none[3])
        self.assertEqual(len({policy for _, _, policy, _ in runs}), 3)
        self.assertEqual(runs[0][2], none[2])
        self.assertRegex(runs[1][2], r"^[12] of 4 levels run again, 1 at a time \(\d+% more FLOPs\)$")
        self.assertRegex(runs[2][2], "^3 of 4")  # the last one goes back first: its graph costs nothing to keep

    def test_a_limit_that_cannot_be_met_is_refused_with_what_would_fit(self):
        for flags in (("--recompute", "auto"), ("--recompute", "level"), ()):
            error = self.train("refused", *flags, "--memory-limit", "1MB", status=2)
            error = error.splitlines()[-1]  # a note on the batch comes before it
            self.assertRegex(error, r"^dtrain: error: --memory-limit 1MB cannot be met .* MiB with --recompute auto; raise the limit")
            self.assertEqual(error.count(" MiB"), 1 if "auto" in flags else 2, error)
        least = float(re.search(r"([\d.]+) MiB with --recompute auto", error)[1])
        self.train("fits", "--recompute", "auto", "--memory-limit", f"{least + 0.1:.1f}MiB")

    def test_the_copy_that_checkpoints_take_is_predicted_and_measured(self):
        plain = self.train("plain", "--neurons", "1024", "--seq-len", "8")
        saving = self.train("saving", "--neurons", "1024", "--seq-len", "8", "--checkpoint-every", "1")
        self.assertGreater(saving[0], 1.2 * plain[0])  # train() compares it with what is measured

    def test_bad_values_and_a_setting_without_effect_are_told(self):
        for flags, name in ((("--recompute", "every:0"), "--recompute"), (("--memory-limit", "0.5"), "--memory-limit")):
            self.assertIn(f"{name}: found", self.train("bad", *flags, status=2))
        result = run(front_end_alone(make_folder(self)), *self.arguments("--recompute", "auto", steps=1), status=42)
        self.assertIn("--recompute auto has no effect without --memory-limit", result.stderr)
        result = self.single("--recompute", "every:99", "--overwrite", steps=1)
        self.assertRegex(result.stderr, r"warning: --recompute every:99: there are \d+ levels")
        result = self.single("--backend", "shm", "--overwrite", steps=1, status=2)
        self.assertIn("--backend shm needs several ranks", result.stderr)


if __name__ == "__main__":
    unittest.main()
