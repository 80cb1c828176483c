"""dtrain generate as a user meets it: a model is trained for a few steps, then writes text."""

import errno
import os
import pty
import subprocess
import unittest

from dtrain_harness import CHECKPOINT, DATA, DTRAIN, GOLDEN, USAGE, final_model, make_folder, run, terminal_output
from messages import assert_error

MINI = GOLDEN / "mini.safetensors"


def dtrain(*arguments, **options):
    return subprocess.run([DTRAIN, *map(str, arguments)], capture_output=True, timeout=120, check=False, **options)


class Generate(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = make_folder(cls)
        text = cls.folder / "text.txt"
        text.write_text("abcdefghijklmnopqrstuvwxyz\n" * 400)
        result = dtrain("train", "--levels", 2, "--width", 32, "--heads", 2, "--neurons", 64, "--data", text,
                        "--seq-len", 64, "--microbatch", 8, "--steps", 120, "--lr", 0.01, "--dropout", 0,
                        "--threads", 1, "--run-dir", cls.folder / "run")
        assert result.returncode == 0, result.stderr
        cls.model = final_model(cls.folder / "run")

    def text(self, *arguments):
        result = dtrain("generate", "--from", self.model, "--threads", 1, *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stderr, b"")
        return result.stdout

    def refused(self, status, *parts, arguments):
        assert_error(run(DTRAIN, "generate", *arguments, status=None), status, *parts)

    def test_a_trained_model_goes_on_with_what_it_learned(self):
        text = self.text("--prompt", "abcdefgh", "--max-tokens", 45, "--temperature", 0)
        self.assertEqual(text, (b"abcdefghijklmnopqrstuvwxyz\n" * 3)[:53])

    def test_the_text_is_the_prompt_and_exactly_the_asked_bytes(self):
        self.assertEqual(len(self.text("--prompt", "abc", "--max-tokens", 17)), 3 + 17)
        self.assertTrue(self.text("--prompt", "h\u00e9", "--max-tokens", 1).startswith("h\u00e9".encode()))

    def test_a_reader_that_went_away_is_no_error(self):
        command = (f"{DTRAIN} generate --from {self.model} --threads 1 --max-tokens 2000 2>{self.folder}/errors | "
                   "head -c 5 >/dev/null; echo ${PIPESTATUS[0]}")
        result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual((result.stdout, (self.folder / "errors").read_text()), ("0\n", ""))

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

    def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(self):
        arguments = ("--prompt", "a", "--max-tokens", 80, "--temperature", 3)
        self.assertEqual(self.text(*arguments, "--seed", 5), self.text(*arguments, "--seed", 5))
        self.assertNotEqual(self.text(*arguments, "--seed", 5), self.text(*arguments, "--seed", 6))

    def test_top_k_1_is_greedy_at_any_temperature(self):
        self.assertEqual(self.text("--prompt", "abc", "--top-k", 1, "--temperature", 9, "--max-tokens", 40),
                         self.text("--prompt", "abc", "--temperature", 0, "--max-tokens", 40))

    def test_without_a_prompt_a_line_begins(self):
        self.assertEqual(self.text("--max-tokens", 10, "--temperature", 0), b"abcdefghij")

    def test_a_run_folder_stands_for_its_final_model(self):
        arguments = ("--prompt", "abc", "--max-tokens", 20)
        text = self.text(*arguments)
        for path in (self.folder / "run", self.folder / "run/final", str(self.folder / "run") + "/"):
            result = dtrain("generate", "--from", path, "--threads", 1, *arguments)
            self.assertEqual((result.returncode, result.stdout), (0, text), result.stderr)

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

    def test_bad_input_is_refused_in_one_line(self):
        self.refused(USAGE, "--from", arguments=["--prompt", "x"])
        self.refused(CHECKPOINT, self.folder / "none", arguments=["--from", self.folder / "none", "--prompt", "x"])
        cut = self.folder / "cut.safetensors"
        cut.write_bytes(self.model.read_bytes()[:-5])
        self.refused(CHECKPOINT, cut, arguments=["--from", cut, "--prompt", "x"])
        self.refused(CHECKPOINT, MINI, "bdh", "act.embed", arguments=["--from", MINI, "--prompt", "x"])
        self.refused(USAGE, "65536", arguments=["--from", self.model, "--prompt", "xyz", "--max-tokens", 65534])
        self.refused(USAGE, "--from-levels", arguments=["--from", self.model, "--from-levels", 3])


if __name__ == "__main__":
    unittest.main()
