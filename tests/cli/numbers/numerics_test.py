"""Runs whose values become non-finite: what they save, what they overwrite, how they end."""

import array
import os
import pathlib
import re
import unittest

from dtrain_harness import front_end_alone, make_folder, run
from messages import assert_names
from resume_test import ResumeTest
from safetensors_file import read_model, write_model
from train_test import DTRAIN, LIMIT

NOTHING = ("--val-fraction", "0")


def write_scaled(path, model, name, factor):
    """A model file with one float32 tensor times `factor`."""
    tensors, metadata = read_model(model)
    dtype, shape, data = tensors[name]
    values = array.array("f", [value * factor for value in array.array("f", data)])
    write_model(path, {**tensors, name: (dtype, shape, values.tobytes())}, metadata)


class NotFinite(ResumeTest):
    def files(self):
        return {str(path): path.read_bytes() for path in self.run_dir.rglob("*")
                if path.is_file() and path.name != "metrics.jsonl" and "lock" not in path.name
                and path.parent.name != "tensorboard"}

    def test_a_last_update_that_would_destroy_the_model_is_skipped(self):
        for name, flags, part in (("evaluated", (), "validation .*nan"), ("alone", NOTHING, "(training .*nan|'model.+' )")):
            self.run_dir = self.root / name
            result = self.single("--lr", "1e38", *flags, steps=1, status=7)
            self.assertRegex(result.stderr, "after step 1: .*" + part)
            self.assertNotIn("done:", result.stdout + result.stderr)
            self.assertFalse((self.run_dir / "final").exists())
            self.assertEqual(self.steps_saved(), [])

    def test_good_files_are_neither_overwritten_nor_lost(self):
        self.single(steps=2)
        before = self.files()
        result = self.single("--resume", "auto", "--lr", "1e38", steps=3, status=7)
        assert_names(result.stderr, self.run_dir / "checkpoints/step-2")
        after = self.files()
        config = str(self.run_dir / "config.json")
        self.assertEqual({**before, config: ""}, {**after, config: ""})
        self.single("--resume", "auto", steps=3)

    def test_all_ranks_reject_a_checkpoint_together(self):
        result = self.ddp("--lr", "1e38", "--checkpoint-every", "1", *NOTHING, status=7)
        self.assertIn("after step 1", result.stderr)
        self.assertEqual(self.steps_saved(), [])

    def test_a_save_on_request_is_checked_too(self):
        (self.run_dir).mkdir()
        (self.run_dir / "STOP").touch()
        self.single("--lr", "1e38", *NOTHING, steps=9, status=7)
        self.assertEqual(self.steps_saved(), [])
        self.assertFalse((self.run_dir / "REQUEUE").exists())

    def test_skipping_ends_after_twenty_updates_in_a_row(self):
        result = self.single("--on-nonfinite", "skip", "--lr", "1e30", *NOTHING, steps=100, status=7)
        assert_names(result.stderr, "21 updates", "--max-skipped 20")
        self.assertEqual([step for step, *_ in self.losses()], list(range(1, 22)))
        self.assertFalse((self.run_dir / "final").exists())

    def test_the_advice_on_skips_in_float16_concerns_the_loss_scale(self):
        result = self.single("--dtype", "float16", "--max-skipped", "0", *NOTHING, steps=2, status=7)
        assert_names(result.stderr, "1 update", "--max-skipped 0", "loss scale", "32768")
        self.assertNotIn("-nan", result.stdout + result.stderr)

    def test_a_loss_scale_that_cannot_fall_further_names_the_last_good_checkpoint(self):
        text = self.root / "alphabet.txt"
        text.write_text("abcdefgh" * 500)
        result = self.run_command([DTRAIN, "--layers", "1", "--width", "8", "--heads", "1", "--neurons", "8", "--seq-len", "8",
                                   "--global-batch", "1", "--threads", "1", "--val-fraction", "0", "--data", text,
                                   "--dtype", "float16", "--lr", "10", "--beta2", "0.999", "--min-lr", "0", "--schedule", "linear", "--warmup-steps", "200",
                                   "--on-nonfinite", "skip", "--steps", "2000", "--checkpoint-every", "5",
                                   "--run-dir", self.run_dir], 7)
        assert_names(result.stderr, "float16", "1")
        assert_names(result.stderr, re.compile(f"{self.run_dir}/checkpoints/step-"))
        self.assertEqual(list(self.run_dir.glob("checkpoints/*.tmp-*")), [])

    def test_optimizer_state_that_is_not_finite_is_not_saved(self):
        first = self.root / "first"
        self.single("--checkpoint-every", "none", steps=1, run_dir=first)
        # Squares of gradients of 1e20 exceed float32, so every further update is divided by infinity.
        large = self.root / "large.safetensors"
        write_scaled(large, first / "final/model.safetensors", "lm_head", 1e22)
        result = self.single("--init-from", large, "--grad-clip", "0", "--lr", "1e-9", *NOTHING, steps=1, status=7)
        self.assertRegex(result.stderr, r"after step 1: 'optimizer\.exp_avg_sq\.[\w.]+' ")
        self.assertIn("--grad-clip", result.stderr)
        self.assertEqual(self.steps_saved(), [])
        self.assertFalse((self.run_dir / "final").exists())

    def test_a_limit_without_effect_triggers_a_warning(self):
        result = run(front_end_alone(make_folder(self)), *self.arguments("--max-skipped", "3", steps=1), status=42)
        assert_names(result.stderr, "warning", "--max-skipped 3")


class TheEnd(ResumeTest):
    def test_a_failed_last_checkpoint_shows_in_status_and_summary(self):
        process = self.start(steps=3000)
        self.wait_for_step(1)
        (self.run_dir / "checkpoints").write_text("in the way")
        error = self.end_of(process, 6, limit=10 * LIMIT)
        summary = self.progress.read_text()
        self.assertIn("done: 3000 steps", summary)
        self.assertRegex(summary, "checkpoints +1 ")
        last = error.splitlines()[-1]
        assert_names(last, "step 3000")
        self.assertIn(str(self.run_dir / "checkpoints"), last)
        self.assertEqual([line["failed_checkpoints"] for line in self.events("end")], [1])
        self.assertEqual(self.lines()[-1]["event"], "failure")
        self.assertEqual(len(self.events("error")), 2)  # of two attempts
        self.assertTrue((self.run_dir / "final/model.safetensors").exists())

    def test_a_shipped_configuration_takes_a_few_steps_at_once(self):
        config = pathlib.Path(os.environ["DTRAIN_SOURCE_DIR"]) / "configs/experiments/mini.json"
        result = self.single("--config", config, "--schedule", "linear", "--warmup-steps", "50", steps=4)
        assert_names(result.stderr, "--warmup-steps 50", "--steps 4", "2")
        rates = [line["learning_rate"] for line in self.lines() if "loss" in line]
        self.assertEqual(rates.index(max(rates)), 1)


if __name__ == "__main__":
    unittest.main()
