"""scripts/quickstart.sh, with few steps, on a text of the user's: what it shows, and what it leaves."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import documents_harness
from messages import assert_names

BUILD = pathlib.Path(os.environ["DTRAIN_BINARY_DIR"])
SOURCE = pathlib.Path(os.environ["DTRAIN_SOURCE_DIR"])


def quickstart(*arguments):
    return subprocess.run([SOURCE / "scripts" / "quickstart.sh", *arguments], capture_output=True, timeout=200, check=False)


class Quickstart(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            text = pathlib.Path(folder) / "text with spaces.txt"
            text.write_bytes((SOURCE / "tests/golden/text.bin").read_bytes())
            cls.results = [quickstart("--steps", "12", text) for _ in range(2)]
        cls.output = [result.stdout.decode(errors="replace") for result in cls.results]
        cls.runs = [SOURCE / name for output in cls.output for name in re.findall(r"run folder: (runs/\S+)", output)]
        for run in cls.runs:
            cls.addClassCleanup(shutil.rmtree, run)

    def test_it_succeeds_and_builds_nothing_anew(self):
        for result, output in zip(self.results, self.output):
            self.assertEqual(result.returncode, 0, result.stderr.decode())
            assert_names(output, "build/release", "up", "date")

    def test_each_call_has_a_run_folder_of_its_own(self):
        self.assertEqual(len(set(self.runs)), 2)
        for run in self.runs:
            for name in ("config.json", "metrics.jsonl", "final/model.safetensors"):
                self.assertTrue((run / name).is_file(), name)

    def test_losses_stand_beside_the_baselines(self):
        for name in (r"training, mean of steps 1 to \d+", "validation", r"a trigram model \(.*\)", r"a bigram model \(.*\)"):
            found = re.search(rf"^  {name} +(\d+\.\d+)$", self.output[0], re.MULTILINE)
            self.assertIsNotNone(found, self.output[0])
            self.assertTrue(1 < float(found.group(1)) < 6, found.group())

    def test_readme_shows_what_it_prints(self):
        fences = documents_harness.fences_of((SOURCE / "README.md").read_text())
        shown = next(fence.text for fence in fences if fence.text.startswith("== result"))
        shown = re.sub(r"(trained model\n).*?(?=== run folder)", r"\1...\n", shown, flags=re.DOTALL)
        figures = documents_harness.Fence(0, "text", "", ["numbers vary"])
        self.assertEqual(documents_harness.difference(["...", *shown.splitlines(), "..."], self.output[0].splitlines(), figures), "")

    def test_same_text_same_model(self):
        first, second = [(run / "final/model.safetensors").read_bytes() for run in self.runs]
        self.assertEqual(first, second)

    def test_it_ends_with_text_that_goes_on_from_the_beginning(self):
        begin = self.results[0].stdout.index(b"by the trained model\n") + len(b"by the trained model\n")
        end = self.results[0].stdout.index(b"\n\n== run folder", begin)
        prompt = b" ".join((SOURCE / "tests/golden/text.bin").read_bytes().split()[:4])
        self.assertTrue(self.results[0].stdout[begin:].startswith(prompt))
        self.assertEqual(end - begin, len(prompt) + 200)

    def test_a_short_text_is_rejected_before_anything(self):
        with tempfile.NamedTemporaryFile() as text:
            text.write(b"short\n")
            text.flush()
            result = quickstart(text.name)
            self.assertEqual((result.returncode, result.stdout), (3, b""))
            assert_names(result.stderr.decode(), text.name, "6 bytes", "2600")

    def test_help_says_what_it_does(self):
        for flag, status in (("--help", 0), ("-h", 0), ("--no-such", 2)):
            result = quickstart(flag)
            self.assertEqual(result.returncode, status)
            shown, other = (result.stdout, result.stderr)[::1 if status == 0 else -1]
            self.assertIn(b"--steps N", shown)
            self.assertEqual(other, b"")

    def test_a_text_that_is_not_there_is_told_before_anything(self):
        result = quickstart("/nonexistent/text")
        self.assertEqual((result.returncode, result.stdout), (3, b""))
        self.assertIn(b"/nonexistent/text", result.stderr)


def is_up_to_date(build):
    """Returns whether quickstart.sh would find nothing to build in this folder."""
    sources = [SOURCE / "CMakeLists.txt"]
    sources += [path for folder in ("apps", "cmake", "launcher", "lib") for path in (SOURCE / folder).rglob("*")]
    log = build / ".ninja_log"
    return log.exists() and all(path.stat().st_mtime < log.stat().st_mtime for path in sources)


if __name__ == "__main__":
    if BUILD.resolve() != (SOURCE / "build" / "release").resolve() or not is_up_to_date(BUILD):
        print("skipped: needs the release build: the quickstart uses it, as new as the sources")
        sys.exit(77)
    unittest.main()
