"""dtrain generate --from finished, stopped and running runs, and from checkpoints of any layout."""

import json
import signal
import subprocess
import time
import unittest

from dtrain_harness import CHECKPOINT, DTRAIN, USAGE, FolderTest, final_model, launched, make_folder, overriding, run
from messages import assert_names

SIZES = ("--levels", 2, "--width", 16, "--heads", 2, "--neurons", 32, "--seq-len", 32, "--threads", 1, "--global-batch", 8)


def damage(checkpoint):
    """Flips a bit in the middle of the checkpoint's weights."""
    file = next(checkpoint.glob("model-*.safetensors"))
    content = bytearray(file.read_bytes())
    content[-9] ^= 1
    file.write_bytes(content)
    return file


class From(FolderTest):
    @classmethod
    def setUpClass(cls):
        cls.shared = make_folder(cls)
        cls.text = cls.shared / "text.txt"
        cls.text.write_text("abcdefghijklmnopqrstuvwxyz\n" * 200)

    def train(self, name, *flags, steps=6, ranks=1, **options):
        run_dir = self.folder / name
        words = overriding([*SIZES, "--data", self.text, "--steps", steps, "--checkpoint-every", 2, "--run-dir", run_dir], *flags)
        run(*launched(ranks, "train", *words), **options)
        return run_dir

    def generate(self, path, *flags, status=0, **options):
        return run(DTRAIN, "generate", "--from", path, "--threads", 1, "--prompt", "abc", "--max-tokens", 40, *flags,
                   status=status, **options)

    def generated(self, path, step=None, **options):
        """The text generated from the checkpoint of `step`; None: from a model file, which prints no note."""
        result = self.generate(path, **options)
        self.assertEqual(f"step {step}:" in result.stderr if step else not result.stderr, True, result.stderr)
        return result.stdout

    def test_a_stopped_run_and_its_checkpoints_give_the_text_of_their_model(self):
        run_dir = self.train("run")
        expected = self.generated(final_model(run_dir))
        self.assertEqual(self.generated(run_dir), expected)
        final_model(run_dir).unlink()
        final_model(run_dir).parent.rmdir()
        newest = run_dir / "checkpoints" / "step-6"
        (self.folder / "latest").symlink_to(newest)
        for path in (run_dir, f"{run_dir}/", newest, f"{newest}/", run_dir / "checkpoints", self.folder / "latest"):
            self.assertEqual(self.generated(path, step=6), expected)
        for folder in (run_dir, newest, run_dir / "checkpoints"):
            self.assertEqual(self.generated(".", step=6, cwd=folder), expected)
        older = self.generated(newest.with_name("step-2"), step=2)
        self.assertNotEqual(older, expected)
        self.assertIn("--from-levels", self.generate(newest, "--from-levels", 3, status=USAGE).stderr)

    def test_checkpoints_of_every_layout_hold_the_same_model(self):
        for name, ranks, flags in (("fsdp", 2, ["--strategy", "fsdp"]), ("tp", 2, ["--strategy", "tp"]), ("pp", 2, ["--strategy", "pp"]),
                                   ("3d", 4, ["--strategy", "3d", "--pp", 2, "--tp", 2, "--dp", 1, "--tie-levels", "off"])):
            with self.subTest(name):
                run_dir = self.train(name, *flags, ranks=ranks, steps=2)
                expected = self.generated(run_dir)
                final_model(run_dir).unlink()
                self.assertEqual(self.generated(run_dir, step=2), expected)

    def test_a_damaged_latest_checkpoint_is_named_and_an_older_one_used(self):
        run_dir = self.train("run")
        final_model(run_dir).unlink()
        checkpoints = run_dir / "checkpoints"
        file = damage(checkpoints / "step-6")
        result = self.generate(run_dir)
        self.assertIn(str(file), result.stderr)
        self.assertIn("step 4:", result.stderr)
        self.assertEqual(result.stdout, self.generated(checkpoints / "step-4", step=4))
        (checkpoints / "step-9").symlink_to("/nowhere/step-9")
        result = self.generate(run_dir)
        self.assertIn("step-9", result.stderr)
        self.assertIn("step 4:", result.stderr)
        (checkpoints / "step-9").unlink()
        (checkpoints / "step-4" / "manifest.json").unlink()
        self.assertIn("step 2:", self.generate(run_dir).stderr)
        # An explicitly named checkpoint is not replaced.
        for name in ("step-6", "step-4"):
            result = self.generate(checkpoints / name, status=CHECKPOINT)
            self.assertEqual((result.stderr.count("\n"), result.stdout), (1, ""), result.stderr)
            self.assertIn(str(checkpoints / name), result.stderr)
        damage(checkpoints / "step-2")
        result = self.generate(run_dir, status=CHECKPOINT)
        assert_names(result.stderr, "3 checkpoints")
        self.assertEqual(result.stdout, "")

    def test_a_damaged_final_model_is_named_and_the_latest_checkpoint_used(self):
        run_dir = self.train("run")
        expected = self.generated(run_dir)
        final = final_model(run_dir)
        final.write_bytes(final.read_bytes()[:-5])
        result = self.generate(run_dir)
        self.assertEqual(result.stdout, expected)
        self.assertIn(str(final), result.stderr)
        self.assertIn("step 6:", result.stderr)
        self.assertIn(str(final), self.generate(final, status=CHECKPOINT).stderr)

    def test_the_final_model_of_an_earlier_end_does_not_hide_later_checkpoints(self):
        run_dir = self.train("run", steps=4)
        earlier = final_model(run_dir).read_bytes()
        self.train("run", "--resume", "auto", steps=8)
        later = self.generated(run_dir)
        # As if it had been stopped after its last checkpoint.
        final_model(run_dir).write_bytes(earlier)
        metrics = (run_dir / "metrics.jsonl").read_text().splitlines(keepends=True)
        self.assertEqual(json.loads(metrics.pop())["event"], "end")
        (run_dir / "metrics.jsonl").write_text("".join(metrics))
        self.assertEqual(self.generated(run_dir, step=8), later)
        self.assertNotEqual(self.generated(final_model(run_dir)), later)

    def test_a_run_that_is_still_training(self):
        command = launched(1, "train", *SIZES, "--data", self.text, "--steps", 10**6, "--checkpoint-every", 1, "--keep-last", 2,
                           "--run-dir", self.folder / "run")
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                end = time.monotonic() + 60
                metrics = self.folder / "run" / "metrics.jsonl"
                while not (metrics.exists() and '"event":"checkpoint"' in metrics.read_text()) and time.monotonic() < end:
                    time.sleep(0.01)
                for _ in range(3):
                    self.assertTrue(self.generate(self.folder / "run").stdout.startswith("abc"))
            finally:
                process.send_signal(signal.SIGKILL)

    def test_the_tokenizer_is_that_of_the_run(self):
        words = self.folder / "words.txt"
        words.write_text("in the beginning was the word and the word was with the people of the land\n" * 100)
        model, tokens = self.folder / "words.model", self.folder / "words.dtok"
        run(DTRAIN, "data", "tokenizer", "train", words, "--vocab-size", 300, "--output", model)
        run(DTRAIN, "data", "prepare", words, "--tokenizer", model, "--output", tokens)
        run_dir = self.train("run", "--data", tokens, steps=2)
        expected = self.generated(run_dir)
        final_model(run_dir).unlink()
        checkpoint = run_dir / "checkpoints" / "step-2"
        self.assertEqual(self.generated(run_dir, step=2), expected)
        self.assertEqual(self.generated(".", step=2, cwd=checkpoint), expected)
        (run_dir / "tokenizer.model").unlink()
        self.assertIn("tokenizer.model", self.generate(checkpoint, status=CHECKPOINT).stderr)

    def test_paths_without_a_model_are_rejected_with_advice(self):
        run_dir = self.train("runs/one", steps=2)
        (self.folder / "empty").mkdir()
        begun = self.folder / "begun"
        begun.mkdir()
        (begun / "config.json").write_text("{}")
        piece = next((run_dir / "checkpoints" / "step-2").glob("model-*.safetensors"))
        for path, parts in ((self.folder / "runs", [str(run_dir)]), (self.folder / "empty", ["empty"]),
                            (self.folder / "none", ["none"]), (begun, ["--checkpoint-every"]),
                            (piece, [f"--from {piece.parent}"]), (run_dir / "metrics.jsonl", ["metrics.jsonl"])):
            result = self.generate(path, status=CHECKPOINT)
            self.assertEqual((result.stderr.count("\n"), result.stdout), (1, ""), result.stderr)
            for part in (f"--from", *parts):
                self.assertIn(part, result.stderr)

    def test_a_path_given_to_another_flag_is_rejected_with_a_pointer_to_from(self):
        run_dir = self.train("run", steps=2)
        for flag in ("--model", "--checkpoint", "--ckpt", "--load", "--resume", "--init-from", "--out-dir", "--run-dir"):
            result = run(DTRAIN, "generate", flag, run_dir, status=USAGE)
            self.assertIn("--from", result.stderr, flag)
        self.assertIn("--from", run(DTRAIN, "generate", run_dir, status=USAGE).stderr)
        result = run(DTRAIN, "train", "--data", self.text, "--model", run_dir, status=USAGE)
        self.assertIn("--init-from", result.stderr)


if __name__ == "__main__":
    unittest.main()
