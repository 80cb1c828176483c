"""dtrain schedule: pipelines as text, as a user sees them."""

import os
import pathlib
import subprocess
import unittest

from messages import assert_names

DTRAIN = pathlib.Path(os.environ["DTRAIN_BINARY_DIR"]) / "bin" / "dtrain"


def run(*arguments):
    return subprocess.run([DTRAIN, "schedule", *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)


class Schedule(unittest.TestCase):
    def printed(self, *arguments):
        result = run(*arguments)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return result.stdout

    def refused(self, *parts, arguments):
        result = run(*arguments)
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        for part in parts:
            self.assertIn(part, result.stderr)

    def test_1f1b_of_two_stages(self):
        stage0, stage1, bubble, flight = self.printed("--pp", 2, "--microbatches", 3).splitlines()
        self.assertEqual(stage0, "stage 0  F0 F1 .  .  B0--- F2 B1--- .  B2---")
        self.assertEqual(stage1, "stage 1  .  F0 B0--- F1 B1--- F2 B2--- .  .")
        assert_names(bubble, "0.3333")
        assert_names(flight, "2 1")

    def test_chunks_are_told_apart(self):
        stage0, stage1, bubble, flight = self.printed("--schedule-pp", "interleaved:2", "--pp", 2, "--microbatches", 2).splitlines()
        self.assertEqual(stage0, "stage 0  F0.0 F1.0 F0.1 F1.1 .    .    B0.1----- .    B1.1----- B0.0----- B1.0-----")
        self.assertEqual(stage1, "stage 1  .    F0.0 F1.0 F0.1 B0.1----- F1.1 B1.1----- B0.0----- B1.0----- .    .")
        assert_names(bubble, "0.25")
        assert_names(flight, "2 1.5")

    def test_every_stage_has_a_row_and_every_pass_a_cell(self):
        for name, chunks in (("gpipe", 1), ("1f1b", 1), ("interleaved:3", 3)):
            lines = self.printed("--schedule-pp", name, "--pp", 4, "--microbatches", 12).splitlines()
            self.assertEqual(len(lines), 6)
            for stage, line in enumerate(lines[:4]):
                words = line.split()
                self.assertEqual(words[:2], ["stage", str(stage)])
                self.assertEqual(len([word for word in words if word.startswith("F")]), 12 * chunks)
                self.assertEqual(len([word for word in words if word.startswith("B")]), 12 * chunks)
                self.assertEqual(words.count("."), len(words) - 2 - 24 * chunks)
            self.assertEqual(lines[4].split()[1], f"{3 / (12 * chunks):.4g}")

    def test_help(self):
        text = self.printed("--help")
        for word in ("--schedule-pp", "--pp", "--microbatches", "bubble"):
            self.assertIn(word, text)
        self.assertLessEqual(max(map(len, text.splitlines())), 100)

    def test_what_cannot_be_drawn_is_refused_in_one_line(self):
        self.refused("--schedule-pp interleaved:2", "--pp 4", "--microbatches is 6", "4 or 8",
                     arguments=["--schedule-pp", "interleaved:2", "--pp", 4, "--microbatches", 6])
        self.refused("--schedule-pp", '"interleaved"', "interleaved:V",
                     arguments=["--schedule-pp", "interleaved", "--pp", 4, "--microbatches", 8])
        self.refused("--pp is required", arguments=["--microbatches", 8])
        self.refused("--microbatches is required", arguments=["--pp", 8])
        self.refused("--pp", "-3", arguments=["--pp", -3, "--microbatches", 8])
        self.refused("--stages", arguments=["--stages", 3])
        self.refused("forwards", arguments=["--pp", 1000, "--microbatches", 1000])


if __name__ == "__main__":
    unittest.main()
