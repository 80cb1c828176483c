"""A run goes on with the data that it began with, to the last byte, and all ranks read the same."""

import unittest

from data_harness import DataTest
from dtrain_harness import DATA, DTRAIN, DTRUN, GOLDEN, USAGE, run
from messages import assert_names

TEXT = (GOLDEN / "text.bin").read_bytes()
TINY = ["--levels", "1", "--width", "16", "--heads", "1", "--neurons", "16", "--seq-len", "16", "--threads", "1",
        "--checkpoint-every", "1", "--run-dir", "run"]


class DataIdentity(DataTest):
    def setUp(self):
        super().setUp()
        self.write("book.txt", TEXT)

    def train(self, *flags, steps, status=0):
        return self.dtrain(*TINY, "--steps", steps, *flags, status=status)

    def overwrite(self, name, begin, size):
        """Other bytes in a file, whose size stays."""
        with (self.folder / name).open("r+b") as file:
            file.seek(begin)
            file.write(b"#" * size)

    def test_one_byte_of_the_text_is_enough_to_refuse(self):
        self.train("--data", "book.txt", steps=1)
        self.train("--data", "book.txt", "--resume", "auto", steps=2)
        self.overwrite("book.txt", 30007, 1)  # between the samples that a fingerprint of 64 of them looks at
        result = self.train("--data", "book.txt", "--resume", "auto", steps=3, status=USAGE)
        self.one_error(result, "data.train (book.txt)")

    def test_a_token_file_is_the_text_that_it_was_made_of(self):
        self.train("--data", "book.txt", steps=1)
        self.dtrain("data", "prepare", "book.txt", "--output", "book.dtok")
        self.train("--data", "book.dtok", "--resume", "auto", steps=2)
        self.overwrite("book.dtok", 104 + 30007, 1)
        for flags in (("--resume", "auto"), ("--overwrite",)):
            result = self.train("--data", "book.dtok", *flags, steps=3, status=DATA)
            self.assertIn("token file 'book.dtok' is damaged", result.stderr)

    def test_validation_data_is_compared_where_there_was_some(self):
        validation = ("--val-data", "other.txt")
        self.write("other.txt", TEXT[:8000])
        self.train("--data", "book.txt", steps=1)
        result = self.train("--data", "book.txt", *validation, "--resume", "auto", steps=2)
        assert_names(result.stderr, "validation data")
        self.overwrite("other.txt", 4003, 2)
        result = self.train("--data", "book.txt", *validation, "--resume", "auto", steps=3, status=USAGE)
        self.one_error(result, "data.validation (other.txt)")

    def test_the_part_kept_for_validation_belongs_to_it(self):
        self.train("--data", "book.txt", "--val-fraction", "0.1", steps=1)
        self.overwrite("book.txt", len(TEXT) - 9, 1)
        result = self.train("--data", "book.txt", "--val-fraction", "0.1", "--resume", "auto", steps=2, status=USAGE)
        self.one_error(result, "data.train (book.txt)")

    def test_ranks_with_different_files_are_named(self):
        for rank in "01":
            self.write(f"node{rank}/book.txt", TEXT)
        self.overwrite("node1/book.txt", 30007, 1)
        command = " ".join(["cd node$RANK && exec", str(DTRAIN), "--strategy ddp --data book.txt", *TINY, "--steps 1"])
        result = run(DTRUN, "-n", "2", "--", "bash", "-c", command, cwd=self.folder, status=USAGE)
        assert_names(result.stderr, "ranks 0 and 1", "training data")


if __name__ == "__main__":
    unittest.main()
