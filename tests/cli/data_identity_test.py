"""A run goes on with the data that it began with, to the last byte, and all ranks read the same."""

import os
import pathlib
import subprocess
import tempfile
import unittest

BIN = pathlib.Path(os.environ["DTRAIN_BINARY_DIR"]) / "bin"
TEXT = (pathlib.Path(os.environ["DTRAIN_SOURCE_DIR"]) / "tests/golden/text.bin").read_bytes()
TINY = ["--levels", "1", "--width", "16", "--heads", "1", "--neurons", "16", "--seq-len", "16", "--threads", "1",
        "--checkpoint-every", "1", "--run-dir", "run"]
USAGE, DATA = 2, 3


class DataIdentity(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="dtrain-identity-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.write("book.txt", TEXT)

    def write(self, name, content):
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)

    def train(self, *flags, steps, status=0):
        """Standard error."""
        command = [BIN / "dtrain", *TINY, "--steps", str(steps), *flags]
        result = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(result.returncode, status, result.stderr)
        return result.stderr

    def overwrite(self, name, begin, size):
        """Other bytes in a file, whose size stays."""
        with (self.folder / name).open("r+b") as file:
            file.seek(begin)
            file.write(b"#" * size)

    def refused(self, error, *parts):
        (line,) = [line for line in error.splitlines() if "error:" in line]
        for part in ("cannot go on from", *parts):
            self.assertIn(part, line)

    def test_one_byte_of_the_text_is_enough_to_refuse(self):
        self.train("--data", "book.txt", steps=1)
        self.train("--data", "book.txt", "--resume", "auto", steps=2)
        self.overwrite("book.txt", 30007, 1)  # between the samples that a fingerprint of 64 of them looks at
        error = self.train("--data", "book.txt", "--resume", "auto", steps=3, status=USAGE)
        self.refused(error, "data.train (book.txt)")

    def test_a_token_file_is_the_text_that_it_was_made_of(self):
        self.train("--data", "book.txt", steps=1)
        subprocess.run([BIN / "dtrain", "data", "prepare", "book.txt", "--output", "book.dtok"], cwd=self.folder,
                       check=True, capture_output=True, timeout=60)
        self.train("--data", "book.dtok", "--resume", "auto", steps=2)
        self.overwrite("book.dtok", 48 + 30007, 1)
        for flags in (("--resume", "auto"), ("--overwrite",)):
            error = self.train("--data", "book.dtok", *flags, steps=3, status=DATA)
            self.assertIn("token file 'book.dtok' is damaged", error)

    def test_validation_data_is_compared_where_there_was_some(self):
        validation = ("--val-data", "other.txt")
        self.write("other.txt", TEXT[:8000])
        self.train("--data", "book.txt", *validation, steps=1)
        self.overwrite("other.txt", 4003, 2)
        error = self.train("--data", "book.txt", *validation, "--resume", "auto", steps=2, status=USAGE)
        self.refused(error, "data.validation (other.txt)")
        error = self.train("--data", "book.txt", "--resume", "auto", steps=2)
        self.assertIn("without its validation data", error)
        error = self.train("--data", "book.txt", *validation, "--resume", "auto", steps=3)
        self.assertIn("with new validation data", error)

    def test_the_part_kept_for_validation_belongs_to_it(self):
        self.train("--data", "book.txt", "--val-fraction", "0.1", steps=1)
        self.overwrite("book.txt", len(TEXT) - 9, 1)
        error = self.train("--data", "book.txt", "--val-fraction", "0.1", "--resume", "auto", steps=2, status=USAGE)
        self.refused(error, "data.train (book.txt)")

    def test_ranks_with_different_files_are_named(self):
        for rank in "01":
            self.write(f"node{rank}/book.txt", TEXT)
        self.overwrite("node1/book.txt", 30007, 1)
        command = " ".join(["cd node$RANK && exec", str(BIN / "dtrain"), "--strategy ddp --data book.txt", *TINY, "--steps 1"])
        result = subprocess.run([BIN / "dtrun", "-n", "2", "--", "bash", "-c", command], cwd=self.folder, timeout=60,
                                capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, USAGE, result.stderr)
        self.assertIn("ranks 0 and 1 do not agree on the training data", result.stderr)


if __name__ == "__main__":
    unittest.main()
