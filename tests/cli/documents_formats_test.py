"""The programs of the pages about file formats work as described, also with other files."""

import json
import unittest

import reader_python
from documents_harness import fences_of, pages_test
from dtrain_harness import DTRAIN, SOURCE, FolderTest, run
from token_file import read_token_file

Pages = pages_test([
    "docs/formats/metrics.md",
    "docs/formats/model.md",
    "docs/formats/tokens.md",
])

TEXT = "In the beginning God created the heaven and the earth.\n" * 100


def program(page, beginning):
    """The Python fence of a page that defines `beginning`."""
    found = [fence.text for fence in fences_of((SOURCE / "docs" / "formats" / page).read_text())
             if fence.tag == "python" and beginning in fence.text]
    assert len(found) == 1, found
    return found[0]


class Model(FolderTest):
    def test_the_program_rebuilds_models_of_other_sizes(self):
        for name in ("train.txt", "validation.txt"):
            (self.folder / name).write_text(TEXT)
        run(DTRAIN, "--data", "train.txt", "--val-data", "validation.txt", "--eval-sequences", "all", "--run-dir", "runs/model",
            "--steps", 3, "--lr", 1e-2, "--levels", 3, "--tie-levels", "off", "--width", 12, "--heads", 3, "--neurons", 10, cwd=self.folder)
        output = run(reader_python.PYTHON, "-c", program("model.md", "def logits_of"), cwd=self.folder,
                     environment={"OMP_NUM_THREADS": "1"}).stdout
        self.assertRegex(output, r"^\d\.\d+ nats .*\d\.\d+ by dtrain\n$")


class Tokens(FolderTest):
    def read(self, path):
        """A file, read by the page's reader."""
        functions = program("tokens.md", "def read_token_file").partition("\ntokens, ends, model =")[0]
        ask = ("\nimport json, sys\ntokens, ends, model = read_token_file(sys.argv[1])\n"
               "print(json.dumps([tokens.tolist(), ends if ends is None else ends.tolist(), model.hex()]))\n")
        return json.loads(run(reader_python.PYTHON, "-c", functions + ask, path).stdout)

    def test_the_reader_reads_what_dtrain_writes(self):
        text, lines = self.folder / "text.txt", self.folder / "lines.jsonl"
        text.write_text(TEXT)
        lines.write_text("".join(json.dumps({"text": "x" * length}) + "\n" for length in (1, 2, 3)))
        run(DTRAIN, "data", "tokenizer", "train", text, "--vocab-size", 300, "--output", self.folder / "text.model")
        for name, flags in (("bytes", [text]), ("pieces", [text, "--tokenizer", self.folder / "text.model"]),
                            ("documents", [lines, "--field", "text"])):
            path = self.folder / f"{name}.dtok"
            run(DTRAIN, "data", "prepare", *flags, "--output", path)
            expected = read_token_file(path)
            with self.subTest(name):
                self.assertEqual(self.read(path), [expected.tokens, expected.document_ends, expected.model.hex()])

    def test_it_reads_what_the_page_writes_as_dtrain_does(self):
        for width, vocab in ((1, 200), (2, 60000), (4, 70000)):
            path = self.folder / f"{width}.dtok"
            tokens = [vocab * i // 500 for i in range(500)]
            functions = program("tokens.md", "def write_token_file").partition("\nwords =")[0]
            run("/usr/bin/python3", "-c", functions + f"\nwrite_token_file({str(path)!r}, {tokens}, {vocab}, {width})")
            with self.subTest(width):
                self.assertEqual(self.read(path), [tokens, None, ""])
                run(DTRAIN, "--data", path, "--run-dir", self.folder / f"run-{width}", "--steps", 1, "--seq-len", 16, "--levels", 1,
                    "--width", 8, "--heads", 1, "--neurons", 8)


if __name__ == "__main__":
    unittest.main()
