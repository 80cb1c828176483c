"""The validation loss covers the same text on every layout, and equals the losses of its pieces."""

import json
import math
import pathlib
import shutil
import struct
import tempfile
import unittest

from dtrain_harness import (CONSTANT_RATE, CHECKPOINT, DATA, DTRAIN, DTRUN, GOLDEN, USAGE, final_model, launched, make_folder, metrics_of,
                            overriding, run)
from messages import assert_names
from rounding import independent_rounding_bound

LENGTH, SEQUENCES = 32, 27
# A forward pass of two levels rounds some 23 results, each a sum of up to 64 products.
BOUND = independent_rounding_bound("float32", 23 * 64)
TEXT = GOLDEN / "text.bin"
MODEL = [*CONSTANT_RATE, "--layers", "2", "--width", "32", "--heads", "2", "--neurons", "64", "--seq-len", LENGTH, "--global-batch", "8",
         "--steps", "1", "--lr", "0", "--threads", "1", "--log-every", "0", "--checkpoint-every", "none"]


class Evaluation(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = make_folder(cls)
        cls.tokens = TEXT.read_bytes()[-(SEQUENCES * LENGTH + 1):]
        cls.validation = cls.write("validation", cls.tokens)

    @classmethod
    def write(cls, name, content):
        path = cls.folder / name
        path.write_bytes(content)
        return path

    def loss(self, *flags, ranks=1, validation=None):
        """The validation loss of the initial weights, and its number of tokens."""
        run_dir = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        run(*launched(ranks, *MODEL, "--data", TEXT, "--val-data", validation or self.validation, "--run-dir", run_dir, *flags))
        (found,) = [line for line in metrics_of(run_dir) if line.get("event") == "eval"]
        return found["val_loss"], found["tokens"]

    def test_the_evaluated_text_does_not_depend_on_the_ranks(self):
        expected, tokens = self.loss()
        self.assertEqual(tokens, SEQUENCES * LENGTH)
        found, tokens = self.loss("--strategy", "ddp", ranks=4)  # the microbatch becomes 2
        self.assertEqual(tokens, SEQUENCES * LENGTH)
        self.assertLessEqual(abs(found / expected - 1), BOUND)

    def test_a_loss_is_the_mean_over_sequences_spread_over_the_text(self):
        pieces = [self.loss(validation=self.write("piece", self.tokens[LENGTH * i:LENGTH * (i + 1) + 1]))[0]
                  for i in (0, 9, 18)]
        self.assertGreater(max(pieces) - min(pieces), 1e-3)
        found, tokens = self.loss("--eval-sequences", "3")
        self.assertEqual(tokens, 3 * LENGTH)
        self.assertLessEqual(abs(found / (sum(pieces) / 3) - 1), BOUND)

    def test_baselines_score_the_same_tokens(self):
        for asked in ("5", "all"):
            result = run(DTRAIN, "data", "baseline", "--data", TEXT, "--val-data", self.validation, "--seq-len", LENGTH,
                         "--eval-sequences", asked)
            self.assertEqual(json.loads(result.stdout)["targets"], (5 if asked == "5" else SEQUENCES) * LENGTH)


class OfTrainedModels(unittest.TestCase):
    """dtrain evaluate."""

    @classmethod
    def setUpClass(cls):
        cls.folder = make_folder(cls)
        cls.run_dir = cls.folder / "run"  # tests do not modify it
        run(DTRAIN, *overriding(MODEL, "--checkpoint-every", "1"), "--data", TEXT, "--run-dir", cls.run_dir)

    def copied(self, name):
        return shutil.copytree(self.run_dir, self.folder / name)

    def evaluated(self, path, *flags):
        return json.loads(run(DTRAIN, "evaluate", "--from", path, "--threads", "1", *flags).stdout)

    def test_the_loss_is_that_of_training_to_the_last_digit(self):
        for name, flags, data in (("file", ("--val-data", TEXT), ("--data", TEXT, "--eval-sequences", "256")),
                                  ("share", ("--val-fraction", "0.1"), ("--data", TEXT, "--val-fraction", "0.1")),
                                  ("bfloat16", ("--val-fraction", "0.1", "--dtype", "bfloat16", "--microbatch", "2"),
                                   ("--data", TEXT, "--val-fraction", "0.1"))):
            run_dir = self.folder / name
            run(DTRAIN, *overriding(MODEL, "--steps", "4", "--lr", "0.01", "--checkpoint-every", "2"), "--data", TEXT, *flags,
                "--run-dir", run_dir)
            (expected,) = [line for line in metrics_of(run_dir) if line.get("event") == "eval"]
            for path in (run_dir, run_dir / "checkpoints" / "step-4", final_model(run_dir)) if name == "file" else (run_dir,):
                with self.subTest(name, path=path):
                    found = self.evaluated(path, *data)
                    self.assertEqual(found["loss"], expected["val_loss"])
                    self.assertEqual(found["tokens"], expected["tokens"])
                    self.assertEqual(found["bits_per_byte"], expected["bits_per_byte"])
                    self.assertAlmostEqual(found["perplexity"], math.exp(expected["val_loss"]))
            if name == "file":
                self.assertNotEqual(self.evaluated(run_dir / "checkpoints" / "step-2", *data)["loss"], expected["val_loss"])
        whole = self.evaluated(self.folder / "file", "--data", TEXT)  # all sequences
        self.assertEqual(whole["tokens"], (TEXT.stat().st_size - 1) // LENGTH * LENGTH)

    def test_every_path_to_a_runs_model_uses_the_runs_settings(self):
        run_dir = self.copied("found")
        link = self.folder / "link"
        link.symlink_to(run_dir / "checkpoints" / "step-1")
        copy = run_dir / "copy.safetensors"
        shutil.copy(final_model(run_dir), copy)
        evaluate = (DTRAIN, "evaluate", "--threads", "1", "--data", TEXT, "--eval-sequences", "1")
        for path in (f"{run_dir}/", run_dir / "final", run_dir / "checkpoints", link, copy):
            with self.subTest(path=path):
                result = run(*evaluate, "--from", path)
                self.assertEqual(json.loads(result.stdout)["seq_len"], LENGTH)
                self.assertNotIn("--seq-len", result.stderr)
        outside = shutil.copytree(run_dir / "final", self.folder / "outside")
        for flags, expected in (((), 128), (("--seq-len", "64"), 64)):
            result = run(*evaluate, "--from", outside, *flags)
            self.assertEqual(json.loads(result.stdout)["seq_len"], expected)
            self.assertIn(f"--seq-len {expected} and --dtype float32", result.stderr)

    def test_the_runs_own_data_may_be_missing(self):
        run_dir = self.copied("moved")
        config = json.loads((run_dir / "config.json").read_text())
        config["data"]["train"] = "/missing/a,b/text"
        (run_dir / "config.json").write_text(json.dumps(config))
        self.assertEqual(self.evaluated(run_dir, "--data", TEXT, "--eval-sequences", "1")["seq_len"], LENGTH)

    def test_numerical_settings_are_the_runs(self):
        run_dir = self.copied("precise")
        file = run_dir / "config.json"
        saved = json.loads(file.read_text())
        saved["machine"]["matmul_precision"] = "tf32"
        file.write_text(json.dumps(saved))
        shown = json.loads(run(DTRAIN, "evaluate", "--from", run_dir, "--data", TEXT, "--print-config").stdout)
        self.assertEqual(shown["machine"]["matmul_precision"], "tf32")

    def test_only_the_evaluated_part_must_hold_a_sequence(self):
        text = self.folder / "short.txt"
        text.write_bytes(TEXT.read_bytes()[:40])
        found = self.evaluated(self.run_dir, "--data", text, "--val-fraction", "0.9")
        self.assertEqual(found["tokens"], LENGTH)
        for fraction, tokens in (("0", 40), ("0.9", 36)):
            error = run(DTRAIN, "evaluate", "--from", self.run_dir, "--data", text, "--val-fraction", fraction, "--seq-len", "64",
                        status=DATA).stderr
            self.assertIn(f"has {tokens} tokens", error)
            self.assertNotIn("training", error)

    def test_data_of_a_larger_vocabulary_are_refused_by_the_models(self):
        tokens, file = self.folder / "tokens.bin", self.folder / "tokens.dtok"
        tokens.write_bytes(struct.pack("<400H", *range(400)))
        run(DTRAIN, "data", "prepare", tokens, "--vocab", "400", "--output", file)
        error = run(DTRAIN, "evaluate", "--from", self.run_dir, "--data", file, status=DATA).stderr
        assert_names(error, "vocabulary", "256")
        self.assertNotIn("--vocab", error)

    def test_a_damaged_final_model_names_the_newest_checkpoint(self):
        run_dir = self.copied("damaged")
        data = bytearray(final_model(run_dir).read_bytes())
        data[-1] ^= 1
        final_model(run_dir).write_bytes(data)
        checkpoint = run_dir / "checkpoints" / "step-1"
        for words in (("evaluate", "--data", TEXT, "--eval-sequences", "1"), ("generate", "--max-tokens", "1")):
            self.assertIn(f"--from {checkpoint.resolve()}", run(DTRAIN, *words, "--from", run_dir, status=CHECKPOINT).stderr)
            run(DTRAIN, *words, "--from", checkpoint)

    def test_unsupported_input_is_refused_in_one_line(self):
        run_dir = self.run_dir
        for flags, status, part in ((("--data", TEXT), USAGE, "--from"), (("--from", run_dir), USAGE, "--data"),
                                    (("--from", run_dir, "--data", "nowhere"), DATA, "nowhere"),
                                    (("--from", "nowhere", "--data", TEXT), CHECKPOINT, "nowhere"),
                                    (("--from", run_dir, "--data", f"{TEXT}:1,{TEXT}:2"), USAGE, "--data")):
            error = run(DTRAIN, "evaluate", *flags, status=status).stderr
            self.assertEqual(len([line for line in error.splitlines() if "error:" in line and part in line]), 1, error)
        for words, flag in (((run_dir, "--data", TEXT), "--from"), (("--data", TEXT, run_dir), "--from"), ((TEXT,), "--data")):
            assert_names(run(DTRAIN, "evaluate", *words, status=USAGE).stderr, f"{flag} {words[0] if flag == '--data' else run_dir}")
        for command in ((), ("train",), ("doctor",), ("plan",)):
            assert_names(run(DTRAIN, *command, run_dir, status=USAGE).stderr, f"--run-dir {run_dir}")
        run(DTRUN, "-n", "2", "--", DTRAIN, "evaluate", "--from", run_dir, "--data", TEXT, status=USAGE)


if __name__ == "__main__":
    unittest.main()
