"""dtrain generate on the command line, from model files, from finished, stopped and running runs, and from checkpoints of any
layout."""

import errno
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import time
import unittest

from dtrain_harness import (
    CHECKPOINT, DATA, DTRAIN, GOLDEN, USAGE, FolderTest, final_model, launched, make_folder, overriding, run,
    terminal_output, wait_until)
from messages import assert_error, assert_names

MINI = GOLDEN / "mini.safetensors"
MEMORY = r"\A[^\n]*memory[^\n]* [KMG]?i?B [^\n]* [KMG]?i?B [^\n]*\n\Z"  # of weights and state, the only note


def dtrain(*arguments, **options):
    return subprocess.run([DTRAIN, *map(str, arguments)], capture_output=True, timeout=120, check=False, **options)


def ascii_of(text):
    """Without the characters that replace invalid UTF-8, whose number depends on the program."""
    return [c for c in text if c.isascii()]


class Generate(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = make_folder(cls)
        text = cls.folder / "text.txt"
        text.write_text("abcdefghijklmnopqrstuvwxyz\n" * 400)
        result = dtrain("train", "--layers", 2, "--width", 32, "--heads", 2, "--neurons", 64, "--data", text,
                        "--seq-len", 64, "--microbatch", 8, "--steps", 120, "--lr", 0.01, "--dropout", 0,
                        "--threads", 1, "--run-dir", cls.folder / "run")
        assert result.returncode == 0, result.stderr
        cls.model = final_model(cls.folder / "run")

    def text(self, *arguments):
        result = dtrain("generate", "--from", self.model, "--threads", 1, *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stderr, MEMORY.encode())
        return result.stdout

    def refused(self, status, *parts, arguments):
        assert_error(run(DTRAIN, "generate", *arguments, status=None), status, *parts)

    def test_a_trained_model_continues_its_training_text(self):
        text = self.text("--prompt", "abcdefgh", "--max-tokens", 45, "--temperature", 0)
        self.assertEqual(text, (b"abcdefghijklmnopqrstuvwxyz\n" * 3)[:53])

    def test_the_text_is_the_prompt_and_exactly_max_tokens_bytes(self):
        self.assertEqual(len(self.text("--prompt", "abc", "--max-tokens", 17)), 3 + 17)
        self.assertTrue(self.text("--prompt", "h\u00e9", "--max-tokens", 1).startswith("h\u00e9".encode()))

    def test_a_closed_pipe_is_no_error(self):
        command = (f"{DTRAIN} generate --from {self.model} --threads 1 --max-tokens 2000 2>{self.folder}/errors | "
                   "head -c 5 >/dev/null; echo ${PIPESTATUS[0]}")
        result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(result.stdout, "0\n")
        self.assertRegex((self.folder / "errors").read_text(), MEMORY)

    def test_on_a_terminal_the_text_ends_with_a_newline(self):
        for tokens, text in ((5, b"abcdefgh\r\n"), (24, b"abcdefghijklmnopqrstuvwxyz\r\n")):
            master, slave = pty.openpty()
            command = [DTRAIN, "generate", "--from", self.model, "--threads", 1, "--prompt", "abc", "--temperature", 0,
                       "--max-tokens", tokens]
            process = subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=slave)
            os.close(slave)
            output = terminal_output(master)
            self.assertEqual((process.wait(120), output), (0, text))

    def test_a_terminal_gets_no_control_characters(self):
        master, slave = pty.openpty()
        command = [DTRAIN, "generate", "--from", self.model, "--threads", 1, "--prompt", "a\x1b\x07\x9b\tc\x7f", "--max-tokens", 1]
        process = subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=slave)
        os.close(slave)
        self.assertIn(b"a??\xc2?", terminal_output(master))
        self.assertEqual(process.wait(120), 0)
        self.assertIn(b"\x1b\x07", self.text("--prompt", "a\x1b\x07c", "--max-tokens", 1))

    def test_samples_are_the_texts_of_consecutive_seeds_of_which_each_gives_its_own_bytes_again(self):
        arguments = ("--prompt", "a", "--max-tokens", 30, "--temperature", 3)
        texts = [self.text(*arguments, "--seed", seed) for seed in (5, 6, 7)]
        self.assertEqual(len(set(texts)), 3)
        several = self.text(*arguments, "--seed", 5, "--samples", 3)
        self.assertEqual(several, b"\n---------------\n".join(texts))
        lines = self.text(*arguments, "--seed", 5, "--samples", 3, "--json").splitlines()
        objects = [json.loads(line) for line in lines]
        self.assertEqual([(each["sample"], each["seed"], each["tokens"]) for each in objects], [(1, 5, 30), (2, 6, 30), (3, 7, 30)])
        for each, text in zip(objects, texts):
            self.assertEqual(ascii_of(each["prompt"] + each["text"]), ascii_of(text.decode(errors="replace")))
            self.assertEqual(each["finish_reason"], "length")

    def test_several_prompts_come_from_lines_or_json_lines(self):
        greedy = ("--max-tokens", 5, "--temperature", 0)
        lines = self.folder / "prompts.txt"
        lines.write_bytes(b"abc\r\n\nxyz\nfg")
        expected = b"\n---------------\n".join(self.text("--prompt", each, *greedy) for each in ("abc", "xyz", "fg"))
        self.assertEqual(self.text("--prompts", lines, *greedy), expected)
        lines.write_bytes(b"\xef\xbb\xbf" + lines.read_bytes())
        result = dtrain("generate", "--from", self.model, "--threads", 1, "--prompts", "-", *greedy, input=lines.read_bytes())
        self.assertEqual(result.stdout, expected, result.stderr)
        objects = self.folder / "prompts.jsonl"
        objects.write_text('\ufeff{"prompt": "abc", "id": 1}\n{"prompt": "z\\na"}\n')
        found = [json.loads(line) for line in self.text("--prompts", objects, *greedy, "--json").splitlines()]
        self.assertEqual([(each["prompt"], each["text"]) for each in found], [("abc", "defgh"), ("z\na", "bcdef")])

    def test_bad_files_of_prompts_are_refused(self):
        file = self.folder / "bad.jsonl"
        base = ["--from", self.model, "--prompts", file]
        for content in ('{"prompt": "a"}\n{"text": "b"}\n', '{"prompt": "a"}\nabc\n', '{"prompt": "a"}\n{"prompt": 3}\n'):
            file.write_text(content)
            self.refused(DATA, "--prompts", file, "line 2", arguments=base)
        file.write_text("\n")
        self.refused(DATA, "--prompts", file, arguments=base)
        self.refused(DATA, "--prompts", os.strerror(errno.ENOENT), arguments=["--from", self.model, "--prompts", "none"])
        self.refused(USAGE, "--prompt", "--prompts", arguments=[*base, "--prompt", "a"])
        long = self.folder / "long.txt"
        long.write_text("a\n" + "x" * 65536 + "\n")
        self.refused(USAGE, "prompt 2", "65536", arguments=["--from", self.model, "--prompts", long])

    def test_the_text_ends_before_a_stop_text(self):
        greedy = ("--prompt", "abc", "--max-tokens", 45, "--temperature", 0)
        self.assertEqual(self.text(*greedy, "--stop", "klm"), b"abcdefghij")
        self.assertEqual(self.text(*greedy, "--stop", "y,z", "--stop", "z\na"), b"abcdefghijklmnopqrstuvwxy")
        self.assertEqual(self.text(*greedy, "--stop", "rs", "--stop", "pqrs"), b"abcdefghijklmno")
        self.assertEqual(self.text(*greedy, "--stop", "abc", "--stop", "klx"), self.text(*greedy)[:27])
        # What may begin a stop text is written when the text ends within it.
        self.assertEqual(self.text(*greedy[:3], 4, *greedy[4:], "--stop", "fghi"), b"abcdefg")
        found = json.loads(self.text(*greedy, "--stop", "klm", "--json"))
        self.assertEqual((found["text"], found["finish_reason"], found["tokens"]), ("defghij", "stop", 10))
        self.refused(USAGE, "--stop", arguments=["--from", self.model, "--stop", ""])

    def test_top_p_keeps_the_likeliest_tokens(self):
        hot = ("--prompt", "abc", "--max-tokens", 40, "--temperature", 2)
        self.assertEqual(self.text(*hot, "--top-p", 1), self.text(*hot))
        self.assertEqual(self.text(*hot, "--top-p", 1e-9), self.text(*hot[:4], "--temperature", 0))
        for value in (0, 1.5, "nan"):
            self.refused(USAGE, "--top-p", arguments=["--from", self.model, "--top-p", value])

    def test_a_generator_beyond_the_memory_limit_is_refused(self):
        # 2 layers of 2 heads of 64 neurons of width 32 in float32: 32 KiB of state; the weights are 112 KiB.
        base = ["--from", self.model, "--prompt", "abc", "--max-tokens", 3]
        self.refused(USAGE, "--memory-limit", "100kB", "--dtype bfloat16", arguments=[*base, "--memory-limit", "100kB"])
        self.assertEqual(len(self.text(*base[2:], "--memory-limit", "200kB")), 6)

    def test_without_a_prompt_a_new_line_begins(self):
        self.assertEqual(self.text("--max-tokens", 10, "--temperature", 0), b"abcdefghij")

    def test_a_prompt_comes_from_standard_input_or_a_file(self):
        prompt = b"abc\xff\n"  # any bytes, all of them
        expected = dtrain("generate", "--from", self.model, "--threads", 1, "--max-tokens", 8, "--prompt", "-",
                          input=prompt)
        self.assertEqual((expected.returncode, expected.stdout[:5]), (0, prompt), expected.stderr)
        self.assertEqual(len(expected.stdout), 13)
        file = self.folder / "prompt"
        file.write_bytes(prompt)
        self.assertEqual(self.text("--prompt-file", file, "--max-tokens", 8), expected.stdout)
        self.refused(USAGE, "--prompt", "--prompt-file",
                     arguments=["--from", self.model, "--prompt", "a", "--prompt-file", file])
        self.refused(DATA, "--prompt-file", os.strerror(errno.ENOENT), arguments=["--from", self.model, "--prompt-file", "none"])
        self.refused(DATA, "--prompt-file", self.folder, arguments=["--from", self.model, "--prompt-file", self.folder])
        file.write_bytes(b"x" * 70000)
        self.refused(USAGE, "65536", arguments=["--from", self.model, "--prompt-file", file])

    def test_standard_input_may_be_non_blocking(self):
        """Other programs that share it may have made it so."""
        expected = self.text("--prompt", "abcdef", "--max-tokens", 8)
        for flag in ("--prompt", "--prompts"):
            reader, writer = os.pipe()
            os.set_blocking(reader, False)
            os.write(writer, b"abc")
            command = [DTRAIN, "generate", "--from", self.model, "--threads", 1, flag, "-", "--max-tokens", 8]
            process = subprocess.Popen([str(part) for part in command], stdin=reader, stdout=subprocess.PIPE)
            wait_until(lambda: not select.select([reader], [], [], 0)[0], "the first bytes to be read")
            time.sleep(0.2)  # until it reads again
            os.write(writer, b"def")
            os.close(reader)
            os.close(writer)
            self.assertEqual((process.communicate(timeout=60)[0], process.returncode), (expected, 0))

    def test_bad_input_is_refused_in_one_line(self):
        self.refused(USAGE, "--from", arguments=["--prompt", "x"])
        self.refused(CHECKPOINT, self.folder / "none", arguments=["--from", self.folder / "none", "--prompt", "x"])
        cut = self.folder / "cut.safetensors"
        cut.write_bytes(self.model.read_bytes()[:-5])
        self.refused(CHECKPOINT, cut, arguments=["--from", cut, "--prompt", "x"])
        self.refused(CHECKPOINT, MINI, "bdh", "act.embed", arguments=["--from", MINI, "--prompt", "x"])
        self.refused(USAGE, "65536", 65533, arguments=["--from", self.model, "--prompt", "xyz", "--max-tokens", 65534])
        self.refused(USAGE, "--from-layers", arguments=["--from", self.model, "--from-layers", 3])
        for theirs, ours in (("--num_return_sequences", "--samples"), ("--stop-strings", "--stop"), ("--topp", "--top-p")):
            self.refused(USAGE, theirs, ours, arguments=["--from", self.model, theirs, 1])


SIZES = ("--layers", 2, "--width", 16, "--heads", 2, "--neurons", 32, "--seq-len", 32, "--threads", 1, "--global-batch", 8)


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
        cls.run_dir = cls.shared / "run"  # of 6 steps, with three checkpoints; tests do not modify it
        run(DTRAIN, "train", *SIZES, "--data", cls.text, "--steps", 6, "--checkpoint-every", 2, "--run-dir", cls.run_dir)

    def copied(self, name="run"):
        return shutil.copytree(self.run_dir, self.folder / name)

    def train(self, name, *flags, steps, ranks=1, **options):
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
        self.assertRegex(result.stderr, rf"step {step}:" if step else MEMORY)
        return result.stdout

    def test_a_stopped_run_and_its_checkpoints_give_the_text_of_their_model(self):
        run_dir = self.copied()
        expected = self.generated(final_model(run_dir))
        self.assertEqual(self.generated(run_dir), expected)
        final_model(run_dir).unlink()
        final_model(run_dir).parent.rmdir()
        newest = run_dir / "checkpoints" / "step-6"
        (self.folder / "latest").symlink_to(newest)
        for path in (f"{run_dir}/", newest, run_dir / "checkpoints", self.folder / "latest"):
            self.assertEqual(self.generated(path, step=6), expected)
        self.assertEqual(self.generated(".", step=6, cwd=run_dir), expected)
        older = self.generated(newest.with_name("step-2"), step=2)
        self.assertNotEqual(older, expected)
        self.assertIn("--from-layers", self.generate(newest, "--from-layers", 3, status=USAGE).stderr)

    def test_checkpoints_of_every_layout_hold_the_same_model(self):
        for name, ranks, flags in (("fsdp", 2, ["--strategy", "fsdp"]),
                                   ("3d", 4, ["--strategy", "3d", "--pp", 2, "--tp", 2, "--dp", 1, "--tie-layers", "off"])):
            with self.subTest(name):
                run_dir = self.train(name, *flags, ranks=ranks, steps=2)
                expected = self.generated(run_dir)
                final_model(run_dir).unlink()
                self.assertEqual(self.generated(run_dir, step=2), expected)

    def test_a_damaged_latest_checkpoint_is_named_and_an_older_one_used(self):
        run_dir = self.copied()
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
        run_dir = self.copied()
        expected = self.generated(run_dir)
        final = final_model(run_dir)
        final.write_bytes(final.read_bytes()[:-5])
        result = self.generate(run_dir)
        self.assertEqual(result.stdout, expected)
        self.assertIn(str(final), result.stderr)
        self.assertIn("step 6:", result.stderr)
        self.assertIn(str(final), self.generate(final, status=CHECKPOINT).stderr)

    def test_an_outdated_final_model_does_not_hide_later_checkpoints(self):
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
        self.assertEqual(self.generate(run_dir, "--ignore-eos", "--stop", "no such words").stdout[:len(expected)], expected)
        final_model(run_dir).unlink()
        checkpoint = run_dir / "checkpoints" / "step-2"
        self.assertEqual(self.generated(run_dir, step=2), expected)
        self.assertEqual(self.generated(".", step=2, cwd=checkpoint), expected)
        (run_dir / "tokenizer.model").unlink()
        missing = self.generate(checkpoint, status=CHECKPOINT).stderr
        assert_names(missing, checkpoint, "tokenizer.model", "300")
        # The tokenizer of another run stands beside: bytes need none, tokens their own.
        imported = self.folder / "imported"
        run(DTRAIN, "checkpoint", "import", final_model(self.train("bytes", steps=2)), imported)
        (self.folder / "tokenizer.model").write_bytes(model.read_bytes())
        self.generate(imported)
        larger = self.folder / "larger.model"
        run(DTRAIN, "data", "tokenizer", "train", words, "--vocab-size", 310, "--output", larger)
        (run_dir / "tokenizer.model").write_bytes(larger.read_bytes())
        assert_names(self.generate(checkpoint, status=CHECKPOINT).stderr, checkpoint, run_dir / "tokenizer.model", "300", "310")

    def test_paths_without_a_model_are_rejected_with_advice(self):
        run_dir = self.copied("runs/one")
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
            for part in ("--from", *parts):
                self.assertIn(part, result.stderr)

    def test_a_path_given_to_another_flag_is_rejected_with_a_pointer_to_from(self):
        run_dir = self.run_dir
        for flag in ("--model", "--checkpoint", "--ckpt", "--load", "--resume", "--init-from", "--out-dir", "--run-dir"):
            result = run(DTRAIN, "generate", flag, run_dir, status=USAGE)
            self.assertIn("--from", result.stderr, flag)
        self.assertIn("--from", run(DTRAIN, "generate", run_dir, status=USAGE).stderr)
        result = run(DTRAIN, "train", "--data", self.text, "--model", run_dir, status=USAGE)
        self.assertIn("--init-from", result.stderr)


if __name__ == "__main__":
    unittest.main()
