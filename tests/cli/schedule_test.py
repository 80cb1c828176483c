"""`dtrain schedule` as a user meets it; its whole output is approved in tests/transcripts/tools.txt."""

import unittest

from dtrain_harness import DTRAIN, FolderTest, run
from messages import assert_names


class Schedule(FolderTest):
    def printed(self, *arguments):
        result = run(DTRAIN, "schedule", *arguments)
        self.assertEqual(result.stderr, "")
        return result.stdout

    def test_stages_are_rows_and_chunks_are_told_apart(self):
        for flags, rows, numbers in (
                (("--pp", 2, "--microbatches", 3),
                 ["stage 0  F0 F1 .  .  B0--- F2 B1--- .  B2---", "stage 1  .  F0 B0--- F1 B1--- F2 B2--- .  ."], ("0.3333", "2 1")),
                (("--schedule-pp", "interleaved:2", "--pp", 2, "--microbatches", 2),
                 ["stage 0  F0.0 F1.0 F0.1 F1.1 .    .    B0.1----- .    B1.1----- B0.0----- B1.0-----",
                  "stage 1  .    F0.0 F1.0 F0.1 B0.1----- F1.1 B1.1----- B0.0----- B1.0----- .    ."], ("0.25", "2 1.5"))):
            *found, bubble, in_flight = self.printed(*flags).splitlines()
            self.assertEqual(found, rows)
            assert_names(bubble, "bubble", numbers[0])
            assert_names(in_flight, numbers[1])

    def test_every_stage_has_a_row_and_every_pass_a_cell(self):
        for name, chunks in (("gpipe", 1), ("1f1b", 1), ("interleaved:3", 3)):
            lines = self.printed("--schedule-pp", name, "--pp", 4, "--microbatches", 12).splitlines()
            self.assertEqual(len(lines), 6)
            for stage, line in enumerate(lines[:4]):
                words = line.split()
                self.assertEqual(words[:2], ["stage", str(stage)])
                for letter in "FB":
                    self.assertEqual(len([word for word in words if word.startswith(letter)]), 12 * chunks)
                self.assertEqual(words.count("."), len(words) - 2 - 24 * chunks)
            self.assertEqual(lines[4].split()[1], f"{3 / (12 * chunks):.4g}")

    def test_what_cannot_be_drawn_is_refused_in_one_line(self):
        for flags, *names in (("--schedule-pp interleaved:2 --pp 4 --microbatches 6", "--schedule-pp interleaved:2", "--pp 4", "6", "4 or 8"),
                              ("--schedule-pp interleaved --pp 4 --microbatches 8", "--schedule-pp", '"interleaved"', "interleaved:V"),
                              ("--microbatches 8", "--pp"), ("--pp 8", "--microbatches"), ("--pp -3 --microbatches 8", "--pp", "found -3"),
                              ("--stages 3", "--stages"), ("--pp 1000 --microbatches 1000", "forwards")):
            self.refused("schedule " + flags, *names)


if __name__ == "__main__":
    unittest.main()
