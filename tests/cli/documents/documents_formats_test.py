"""The pages about file formats: their programs work as described, also with other files, and metrics.md documents every event that
dtrain writes, with its keys and a sample line."""

import json
import os
import re
import signal
import subprocess
import unittest

from data_harness import read_token_file
from documents_harness import fences_of, pages_test
from dtrain_harness import (
    DIFFERENT, DTRAIN, DTRUN, LIMIT, PYTHON, SOURCE, FolderTest, launched, make_folder, metrics_of, overriding,
    run, wait_until)

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
            "--steps", 3, "--lr", 1e-2, "--layers", 3, "--tie-layers", "off", "--width", 12, "--heads", 3, "--neurons", 10, cwd=self.folder)
        output = run(PYTHON, "-c", program("model.md", "def logits_of"), cwd=self.folder,
                     environment={"OMP_NUM_THREADS": "1"}).stdout
        self.assertRegex(output, r"^\d\.\d+ nats .*\d\.\d+ by dtrain\n$")


class Tokens(FolderTest):
    def read(self, path):
        """A file, read by the page's reader."""
        functions = program("tokens.md", "def read_token_file").partition("\ntokens, ends, model =")[0]
        ask = ("\nimport json, sys\ntokens, ends, model = read_token_file(sys.argv[1])\n"
               "print(json.dumps([tokens.tolist(), ends if ends is None else ends.tolist(), model.hex()]))\n")
        return json.loads(run(PYTHON, "-c", functions + ask, path).stdout)

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
                run(DTRAIN, "--data", path, "--run-dir", self.folder / f"run-{width}", "--steps", 1, "--seq-len", 16, "--layers", 1,
                    "--width", 8, "--heads", 1, "--neurons", 8)


PAGE = SOURCE / "docs" / "formats" / "metrics.md"
SMALL = ["--layers", 1, "--width", 16, "--heads", 2, "--neurons", 16, "--seq-len", 16, "--threads", 1, "--tensorboard", "off"]
STOPPED = 9
# Written only on a GPU.
UNSEEN = {("start", "host_memory_predicted_bytes")}
# The second rank of the first attempt writes its process id.
TELLING = 'echo $$ >"$0.$RANK.$TORCHELASTIC_RESTART_COUNT"; exec "$@"'


def kind_of(line):
    return line.get("event", "step")


def sections():
    """Event (or step) -> the text of its section."""
    text = PAGE.read_text()
    found = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##)", text, re.DOTALL | re.MULTILINE))
    found["step"] = re.search(r"^## Steps\n(.*?)^## ", text, re.DOTALL | re.MULTILINE)[1]
    return found


def documented_keys(section):
    """Key -> the names of its members, from its row."""
    found = {}
    for names, meaning in re.findall(r"^\| (`[^|]*?) \|(.*)\|$", section, re.MULTILINE):
        inside = set(re.findall(r"`(\w+)`", meaning))
        found.update({name: inside for name in re.findall(r"`(\w+)`", names)})
    return found


def shape(value):
    """The shape of a value, equal for all runs: its keys in order, and the types of its values."""
    if isinstance(value, dict):
        return [(key, shape(part)) for key, part in value.items()]
    if isinstance(value, list):
        return "list"
    return "text" if isinstance(value, str) else "number"


class Metrics(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = make_folder(cls)
        with open(cls.folder / "book.txt", "wb") as file:
            subprocess.run(["bible", "-f", "gen1:1-gen10:1"], stdout=file, check=True)
        cls.lines = []
        cls.every_report()
        cls.a_restart()
        cls.skipped_updates()
        cls.compression_between_nodes()
        cls.an_early_end()

    @classmethod
    def train(cls, name, ranks, *flags, status=0, launcher=None):
        """Adds the lines of this run; returns its folder."""
        words = overriding([*SMALL, "--data", cls.folder / "book.txt", "--run-dir", cls.folder / name], *flags)
        run(*(launcher or []), *launched(1 if launcher else ranks, *words), status=status)
        cls.lines += metrics_of(cls.folder / name)

    @classmethod
    def every_report(cls):
        flags = ["--strategy", "fsdp", "--val-fraction", 0.1, "--eval-every", 4, "--sample-every", 4, "--checkpoint-every", 4,
                 "--keep-best", "--resume", "auto"]
        cls.train("run", 2, "--steps", 8, *flags)
        cls.train("run", 2, "--steps", 12, *flags)
        cls.train("auto", 2, "--steps", 2, "--strategy", "auto")

    @classmethod
    def a_restart(cls):
        folder, stem = cls.folder / "restarted", cls.folder / "pid"
        words = [DTRUN, "-n", 2, "--max-restarts", 1, "--", "sh", "-c", TELLING, stem, DTRAIN, *SMALL, "--strategy", "ddp", "--data",
                 cls.folder / "book.txt", "--run-dir", folder, "--steps", 10**9, "--checkpoint-every", 5]
        with subprocess.Popen([str(word) for word in words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as job:
            try:
                metrics = folder / "metrics.jsonl"
                wait_until(lambda: metrics.exists() and '"event":"checkpoint"' in metrics.read_text(), "a checkpoint")
                os.kill(int((cls.folder / "pid.1.0").read_text()), signal.SIGKILL)
                wait_until(lambda: '"recovery"' in metrics.read_text(), "a recovery")
                (folder / "STOP").touch()
                assert job.wait(LIMIT) == STOPPED, job.returncode
            finally:
                job.kill()
        cls.lines += metrics_of(folder)

    @classmethod
    def skipped_updates(cls):
        cls.train("nonfinite", 1, "--steps", 3, "--lr", 1e30, "--on-nonfinite", "skip", status=DIFFERENT)
        cls.train("float16", 1, "--steps", 2, "--dtype", "float16")

    @classmethod
    def compression_between_nodes(cls):
        cls.train("compressed", 2, "--steps", 2, "--strategy", "ddp", "--compress", "bf16",
                  launcher=[DTRUN, "--emulate-nodes", 2, "-n", 1, "--"])

    @classmethod
    def an_early_end(cls):
        words = cls.folder / "words"
        words.mkdir()
        for name in ("wiki.train.raw", "wiki.valid.raw", "wiki.test.raw"):
            (words / name).write_text(" = Title = \n" + (cls.folder / "book.txt").read_text()[:20000])
        run(DTRAIN, "data", "prepare", "--dataset", "wikitext", words, "--output", words / "out")
        cls.train("patient", 1, "--steps", 9, "--lr", 0, "--weight-decay", 0, "--data", words / "out" / "train.dtok", "--val-data",
                  words / "out" / "valid.dtok", "--eval-every", 1, "--patience", 1)

    def test_the_documented_events_are_those_of_the_code_and_of_runs(self):
        code = "".join(path.read_text() for path in (SOURCE / "lib" / "dtrain" / "metrics").rglob("*.cpp"))
        written = set(re.findall(r'\{"event", "(\w+)"\}', code))
        self.assertGreater(len(written), 5, "this test must have found the events")
        self.assertEqual(set(sections()) - {"step"}, written)
        self.assertEqual({kind_of(line) for line in self.lines} - {"step"}, written)

    def test_keys(self):
        for kind, section in sections().items():
            documented = documented_keys(section)
            lines = [line for line in self.lines if kind_of(line) == kind]
            with self.subTest(kind):
                seen = {key for line in lines for key in line} - {"event"}
                self.assertEqual(set(documented), seen | {key for event, key in UNSEEN if event == kind})
                for key, value in ((key, value) for line in lines for key, value in line.items() if isinstance(value, dict)):
                    self.assertEqual(set(value) - documented[key], set(), key)

    def test_sample_lines(self):
        for kind, section in sections().items():
            samples = [json.loads(fence.text) for fence in fences_of(section) if fence.tag == "json"]
            with self.subTest(kind):
                self.assertEqual([kind_of(sample) for sample in samples], [kind])
                shapes = [shape(line) for line in self.lines if kind_of(line) == kind]
                self.assertIn(shape(samples[0]), shapes)


if __name__ == "__main__":
    unittest.main()
