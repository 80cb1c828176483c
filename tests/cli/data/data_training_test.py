"""Runs on tokens of a tokenizer, on mixtures and on WikiText; resumes only with identical data; data truncated during a run gives
one line with the file, the exit status of data, and the last checkpoint, and no SIGBUS."""

import contextlib
import json
import math
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import time
import unittest

from data_harness import DataTest, read_token_file
from dtrain_harness import CHECKPOINT, CONSTANT_RATE, DATA, DTRAIN, DTRUN, GOLDEN, LIMIT, USAGE, final_model, metrics_of, run
from messages import assert_names, error_line, lines_naming

TEXT = (GOLDEN / "text.bin").read_bytes()
TINY = [*CONSTANT_RATE, "--layers", 1, "--width", 16, "--heads", 1, "--neurons", 16, "--seq-len", 16, "--threads", 1, "--checkpoint-every", 1]
ARTICLE = " \n = {} = \n \n {} \n = = Section = = \n \n More of it , said she . \n"


def header_of(model_file):
    with model_file.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        return json.loads(file.read(length))["__metadata__"]


class Training(DataTest):
    def train(self, *flags, steps=2, run_dir="run", status=0):
        return self.dtrain(*TINY, "--steps", steps, "--run-dir", run_dir, *flags, status=status)

    def tokens(self, name, vocab=400, text=TEXT):
        """NAME.dtok of `text` and its tokenizer NAME.model."""
        self.write("book.txt", text)
        self.dtrain("data", "tokenizer", "train", "book.txt", "--vocab-size", vocab, "--output", f"{name}.model")
        self.dtrain("data", "prepare", "book.txt", "--tokenizer", f"{name}.model", "--output", f"{name}.dtok")
        return read_token_file(self.folder / f"{name}.dtok")


class Tokenizers(Training):
    def test_the_model_gets_vocabulary_and_tokenizer_from_its_data_and_writes_text(self):
        found = self.tokens("a")
        self.train("--data", "a.dtok", "--val-fraction", 0.1, "--sample-every", 2, "--sample-prompt", "In the")
        folder = self.folder / "run"
        self.assertEqual(json.loads((folder / "config.json").read_text())["model"]["vocab"], 400)
        self.assertEqual((folder / "tokenizer.model").read_bytes(), (self.folder / "a.model").read_bytes())
        self.assertTrue(header_of(final_model(folder))["dtrain.tokenizer"].startswith("sentencepiece xxh3 "))
        lines = metrics_of(folder)
        evaluation = next(line for line in lines if line.get("event") == "eval")
        self.assertAlmostEqual(evaluation["bits_per_byte"], evaluation["val_loss"] / math.log(2) * len(found.tokens) / len(TEXT))
        self.assertNotIn("perplexity_per_word", evaluation)
        sample = next(line for line in lines if line.get("event") == "sample")
        self.assertTrue(sample["text"].startswith("In the"))
        self.generates_text()
        self.tokenizers_are_compared()

    def generates_text(self):
        written = self.dtrain("generate", "--from", "run", "--prompt", "In the", "--max-tokens", 60, "--seed", 3).stdout
        again = self.dtrain("generate", "--from", "run", "--prompt", "In the", "--max-tokens", 60, "--seed", 3).stdout
        self.assertEqual(written, again)
        self.assertTrue(written.startswith("In the"))
        self.assertGreater(len(written), 60)  # tokens stand for more than a byte
        self.dtrain("generate", "--from", "run", "--max-tokens", 5)
        self.write("bad.txt", b"caf\xe9")
        error_line(self.dtrain("generate", "--from", "run", "--prompt-file", "bad.txt", status=DATA).stderr, "UTF-8", "byte 3")
        self.write("long.txt", "a" + "\u00e9" * 1_200_000)
        error_line(self.dtrain("generate", "--from", "run", "--prompt-file", "long.txt", status=USAGE).stderr, "more than 2097152 bytes",
                       "65536 positions")
        self.dtrain("checkpoint", "export", "run", "exported.safetensors")
        beside = self.folder / "tokenizer.model"
        self.assertEqual(beside.read_bytes(), (self.folder / "a.model").read_bytes())
        self.assertEqual(self.dtrain("checkpoint", "export", "run", "exported.safetensors", "--overwrite").stderr, "")
        beside.write_text("another")
        assert_names(self.dtrain("checkpoint", "export", "run", "exported.safetensors", "--overwrite").stderr, "tokenizer.model")
        self.assertEqual(beside.read_text(), "another")
        beside.unlink()
        error_line(self.dtrain("generate", "--from", "exported.safetensors", status=CHECKPOINT).stderr, "exported.safetensors",
                       "tokenizer.model", "copy it")
        shutil.copy(self.folder / "a.model", self.folder / "tokenizer.model")
        self.dtrain("generate", "--from", "exported.safetensors", "--max-tokens", 5)

    def tokenizers_are_compared(self):
        self.dtrain("data", "tokenizer", "train", "book.txt", "--vocab-size", 400, "--type", "unigram", "--output", "b.model")
        self.dtrain("data", "prepare", "book.txt", "--tokenizer", "b.model", "--output", "b.dtok")
        shutil.copy(self.folder / "b.model", self.folder / "tokenizer.model")
        error_line(self.dtrain("generate", "--from", "exported.safetensors", status=CHECKPOINT).stderr, "tokenizer.model")
        for source in ("run", "run/final/model.safetensors"):
            error_line(self.train("--data", "b.dtok", "--init-from", source, run_dir="new", status=DATA).stderr, "--init-from", "b.dtok",
                           "tokenizer")
        link = self.folder / "link"
        link.symlink_to(max(self.folder.glob("run/checkpoints/step-*")))
        for source in ("run", "link"):
            error_line(self.dtrain("evaluate", "--from", source, "--data", "b.dtok", status=DATA).stderr, "b.dtok")
        self.tokens("c", vocab=450)
        for source in ("run", "run/final/model.safetensors", "link"):
            error_line(self.train("--data", "c.dtok", "--init-from", source, run_dir="new", status=DATA).stderr, f"--init-from {source}",
                       "c.dtok", "450", "400", "run/tokenizer.model")
        error_line(self.dtrain("evaluate", "--from", "link", "--data", "c.dtok", status=DATA).stderr, "--from link", "c.dtok", "450", "400",
                   "run/tokenizer.model")
        error_line(self.train("--data", "b.dtok", "--val-fraction", 0.1, "--resume", "auto", steps=3, status=USAGE).stderr, "data.train (b.dtok)")
        error_line(self.train("--data", "b.dtok", "--val-fraction", 0.1, "--resume", "auto", "--new-data", steps=3, status=DATA).stderr,
                   "--new-data", "data.train (b.dtok)", "tokenizer")
        error_line(self.train("--data", "a.dtok", "--val-data", "b.dtok", run_dir="new", status=DATA).stderr, "a.dtok", "b.dtok",
                       "tokenizers")
        error_line(self.train("--data", "a.dtok", "--vocab", 300, run_dir="new", status=DATA).stderr, "a.dtok", "400", "300")
        self.train("--data", "a.dtok", "--init-from", "run", run_dir="new")

    def test_a_foreign_tokenizer_is_not_replaced(self):
        self.tokens("a")
        (self.folder / "mine").mkdir()
        self.write("mine/tokenizer.model", "precious")
        error_line(self.train("--data", "a.dtok", run_dir="mine", status=USAGE).stderr, "mine/tokenizer.model", "move it")
        self.assertEqual((self.folder / "mine" / "tokenizer.model").read_text(), "precious")
        self.assertFalse((self.folder / "mine" / "config.json").exists())

    def test_overwriting_replaces_the_tokenizer_of_the_old_run_alone(self):
        self.tokens("a")
        self.tokens("b", vocab=500)
        kept = self.folder / "run" / "tokenizer.model"
        self.train("--data", "a.dtok")
        self.train("--data", "b.dtok", "--overwrite")
        self.assertEqual(kept.read_bytes(), (self.folder / "b.model").read_bytes())
        kept.write_text("precious")
        before = {path: path.read_bytes() for path in (self.folder / "run").rglob("*") if path.is_file() and path.name != "lock"}
        error_line(self.train("--data", "a.dtok", "--overwrite", status=USAGE).stderr, "run/tokenizer.model", "move it")
        after = {path: path.read_bytes() for path in (self.folder / "run").rglob("*") if path.is_file() and path.name != "lock"}
        self.assertEqual(after, before)
        self.train("--data", "book.txt", "--overwrite")
        self.assertEqual(kept.read_text(), "precious")

    def test_a_mixture_has_the_first_known_tokenizer(self):
        self.tokens("a")
        self.write("u.bin", struct.pack("<400H", *(i % 400 for i in range(400))))
        self.dtrain("data", "prepare", "u.bin", "--vocab", 400, "--output", "u.dtok")
        self.train("--data", "u.dtok:1,a.dtok:1", "--sample-every", 2)
        self.assertEqual((self.folder / "run" / "tokenizer.model").read_bytes(), (self.folder / "a.model").read_bytes())
        self.assertTrue(header_of(final_model(self.folder / "run"))["dtrain.tokenizer"].startswith("sentencepiece xxh3 "))

    def test_samples_need_a_tokenizer(self):
        self.write("train.bin", struct.pack("<400H", *(i % 65 for i in range(400))))
        self.dtrain("data", "prepare", "train.bin", "--vocab", 65, "--output", "t.dtok")
        error_line(self.train("--data", "t.dtok", "--sample-every", 1, status=USAGE).stderr, "--sample-every", "t.dtok")
        self.train("--data", "t.dtok")
        error_line(self.dtrain("generate", "--from", "run", status=CHECKPOINT).stderr, "65", "tokenizer")


class Mixtures(Training):
    def losses(self, run_dir):
        return [line["loss"] for line in metrics_of(self.folder / run_dir) if "loss" in line and "event" not in line]

    def test_a_mixture_is_the_same_in_any_layout_and_resumed(self):
        self.write("a.txt", TEXT[:20000])
        self.write("b.txt", TEXT[20000:26000])
        data = ["--data", "a.txt:0.7,b.txt:0.3", "--global-batch", 4, "--microbatch", 1]
        self.train(*data, steps=6, run_dir="whole")
        self.train(*data, steps=3, run_dir="parts")
        self.dtrain("--run-dir", "parts", "--resume", "auto", "--steps", 6)  # the run's own --data
        self.assertEqual(self.losses("parts"), self.losses("whole"))
        run(DTRUN, "-n", 2, "--", DTRAIN, *TINY, "--steps", 6, "--run-dir", "two", "--strategy", "ddp", *data, cwd=self.folder)
        self.assertEqual(self.losses("two"), self.losses("whole"))
        self.write("b.txt", TEXT[20000:25999] + b"#")
        error_line(self.train(*data, "--resume", "auto", steps=7, run_dir="parts", status=USAGE).stderr, "data.train (a.txt:0.7,b.txt:0.3)")
        error_line(self.train("--data", "a.txt:0.6,b.txt:0.4", *data[2:], "--resume", "auto", steps=7, run_dir="parts", status=USAGE).stderr,
                       "data.train")

    def test_invalid_weights_are_rejected_before_anything_starts(self):
        self.write("a.txt", TEXT[:20000])
        for mixture, part in (("a.txt:0,a.txt:1", '"0"'), ("a.txt:x,a.txt:1", '"x"'), ("a.txt:1,a.txt", "a.txt"),
                              ("a.txt:-2,a.txt:1", '"-2"'), ("a,b.txt:1,a.txt:1", "a")):
            error_line(self.train("--data", mixture, status=USAGE).stderr, "--data", part)
        error_line(self.train("--data", "a.txt:1,missing:1", status=DATA).stderr, "missing")
        self.assertFalse((self.folder / "run").exists())

    def test_a_file_that_is_named_twice_is_reported(self):
        self.write("a.txt", TEXT[:20000])
        self.write("b,c.txt", TEXT[20000:26000])
        for mixture, warnings in (("a.txt:1,./a.txt:1", 1), ("b,c.txt", 0)):
            lines = self.train("--data", mixture, "--overwrite").stderr.splitlines()
            self.assertEqual(len(lines_naming("\n".join(lines), "warning", "--data", "./a.txt")), warnings)


class WikiText(Training):
    def test_perplexity_per_word_matches_the_formula(self):
        text = "".join(ARTICLE.format(f"Title {i}", "Some words stand here " * (i % 7 + 1)) for i in range(40))
        self.write("wiki.test.raw", text)
        self.dtrain("data", "prepare", "--dataset", "wikitext", "wiki.test.raw", "--output", "test.dtok")
        result = self.train("--data", "test.dtok", "--val-data", "test.dtok", "--eval-sequences", "all")
        evaluation = next(line for line in metrics_of(self.folder / "run") if line.get("event") == "eval")
        words = len(text.split()) + text.count("\n")
        loss = evaluation["val_loss"]
        self.assertAlmostEqual(evaluation["bits_per_byte"], loss / math.log(2))
        self.assertAlmostEqual(evaluation["perplexity_per_word"] / math.exp(loss * len(text) / words), 1)
        assert_names(result.stdout + result.stderr, "per byte", "per word")
        assert_names(result.stderr, "--val-data test.dtok", "training data")


SAVING = [*CONSTANT_RATE, "--layers", "1", "--width", "16", "--heads", "1", "--neurons", "16", "--seq-len", "16", "--threads", "1",
        "--checkpoint-every", "1", "--run-dir", "run"]


class DataIdentity(DataTest):
    def setUp(self):
        super().setUp()
        self.write("book.txt", TEXT)

    def train(self, *flags, steps, status=0):
        return self.dtrain(*SAVING, "--steps", steps, *flags, status=status)

    def overwrite(self, name, begin, size):
        """Changes bytes of a file without changing its size."""
        with (self.folder / name).open("r+b") as file:
            file.seek(begin)
            file.write(b"#" * size)

    def test_one_changed_byte_of_the_text_is_rejected(self):
        self.train("--data", "book.txt", steps=1)
        self.train("--data", "book.txt", "--resume", "auto", steps=2)
        self.overwrite("book.txt", 30007, 1)  # between the samples that a fingerprint of 64 of them looks at
        result = self.train("--data", "book.txt", "--resume", "auto", steps=3, status=USAGE)
        error_line(result.stderr, "data.train (book.txt)")

    def test_a_token_file_equals_its_text(self):
        self.train("--data", "book.txt", steps=1)
        self.dtrain("data", "prepare", "book.txt", "--output", "book.dtok")
        self.train("--data", "book.dtok", "--resume", "auto", steps=2)
        self.overwrite("book.dtok", 104 + 30007, 1)
        for flags in (("--resume", "auto"), ("--overwrite",)):
            result = self.train("--data", "book.dtok", *flags, steps=3, status=DATA)
            self.assertIn("token file 'book.dtok' is damaged", result.stderr)

    def test_validation_data_is_compared_if_the_run_had_some(self):
        validation = ("--val-data", "other.txt")
        self.write("other.txt", TEXT[:8000])
        self.train("--data", "book.txt", steps=1)
        result = self.train("--data", "book.txt", *validation, "--resume", "auto", steps=2)
        assert_names(result.stderr, "data.validation", "none", re.compile("other.txt"))
        self.overwrite("other.txt", 4003, 2)
        result = self.train("--data", "book.txt", *validation, "--resume", "auto", steps=3, status=USAGE)
        error_line(result.stderr, "data.validation (other.txt)")

    def test_the_part_kept_for_validation_belongs_to_it(self):
        self.train("--data", "book.txt", "--val-fraction", "0.1", steps=1)
        self.overwrite("book.txt", len(TEXT) - 9, 1)
        result = self.train("--data", "book.txt", "--val-fraction", "0.1", "--resume", "auto", steps=2, status=USAGE)
        error_line(result.stderr, "data.train (book.txt)")

    def test_ranks_with_different_files_are_named(self):
        for rank in "01":
            self.write(f"node{rank}/book.txt", TEXT)
        self.overwrite("node1/book.txt", 30007, 1)
        command = " ".join(["cd node$RANK && exec", str(DTRAIN), "--strategy ddp --data book.txt", *SAVING, "--steps 1"])
        result = run(DTRUN, "-n", "2", "--", "bash", "-c", command, cwd=self.folder, status=USAGE)
        assert_names(result.stderr, "ranks 0 and 1", "training data")


ENDLESS = [*CONSTANT_RATE, "--layers", "1", "--width", "16", "--heads", "1", "--neurons", "16", "--seq-len", "16", "--microbatch", "1", "--threads", "1",
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
        while not self.committed_steps():
            if process.poll() is not None:
                self.fail(process.communicate()[1])
            self.assertLess(time.monotonic(), limit)
            time.sleep(0.02)
        return process

    def committed_steps(self):
        names = [path.name.removeprefix("step-") for path in self.folder.glob("run/checkpoints/step-*")]
        return [int(name) for name in names if name.isdigit()]

    def ended(self, process, status):
        _, error = process.communicate(timeout=LIMIT)
        self.assertEqual(process.returncode, status, error)
        return error

    def test_training_data(self):
        for flags in ((), ("--strategy", "dp", "--local-ranks", "2")):
            with self.subTest(flags):
                self.addCleanup(shutil.rmtree, self.folder / "run", ignore_errors=True)
                process = self.start(DTRAIN, "--data", "book.txt", *ENDLESS, *flags)
                os.truncate(self.folder / "book.txt", 1000)
                error = self.ended(process, DATA)
                assert_names(error_line(error, "'book.txt'"), "byte 1000", f"{len(TEXT)} bytes")
                named = int(re.search(r"run/checkpoints/step-(\d+)", error)[1])
                # A save that was in progress may have been committed after the error.
                latest = max(self.committed_steps())
                self.assertLessEqual(named, latest)
                self.assertIn("book.txt", metrics_of(self.folder / "run")[-1]["message"])
                self.write("book.txt", TEXT)
                self.dtrain("--resume", "auto", "--run-dir", "run", "--steps", latest)
                shutil.rmtree(self.folder / "run")

    def test_validation_data(self):
        self.write("other.txt", TEXT[:9000])
        process = self.start(DTRAIN, "--data", "book.txt", "--val-data", "other.txt", "--eval-every", "2", *ENDLESS)
        os.truncate(self.folder / "other.txt", 0)
        assert_names(error_line(self.ended(process, DATA), "'other.txt'"), "byte 0")

    def test_data_of_one_rank_which_dtrun_names(self):
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

    def test_offloaded_values(self):
        if os.geteuid() != 0:
            self.skipTest("needs root: to shorten an unlinked file")
        process, files = self.offloaded()
        with contextlib.suppress(FileNotFoundError):  # once the process has ended
            for file in files:
                os.truncate(file, 0)
        error_line(self.ended(process, CHECKPOINT), "--offload disk:disk")

    def test_other_bus_errors_end_as_before(self):
        process, _ = self.offloaded()
        process.send_signal(signal.SIGBUS)
        self.assertNotIn("--offload", self.ended(process, -signal.SIGBUS))


if __name__ == "__main__":
    unittest.main()
