"""docs/guide/checkpoints.md's table of what a resumed run may change: each flag behaves as its row says."""

import re
import unittest

from dtrain_harness import CONSTANT_RATE, DTRAIN, GOLDEN, SOURCE, USAGE, make_folder, overriding, run
from messages import error_line

TINY = [*CONSTANT_RATE, "--layers", 1, "--width", 16, "--heads", 2, "--neurons", 16, "--seq-len", 16, "--threads", 1, "--tensorboard", "off"]
# A flag of the table -> its value in the resumed run, and the flags of the original run beside TINY.
CHANGES = {
    "refused": {"--seq-len": (8, []), "--val-fraction": (0.2, ["--val-fraction", 0.1]), "--seed": (2, []), "--global-batch": (4, []),
                "--optimizer": ("sgd", []), "--momentum": (0.5, ["--optimizer", "sgd", "--momentum", 0]), "--data": ("other.txt", []),
                "--val-data": ("other.txt", ["--val-data", "text.txt"])},
    "noted": {"--lr": (1e-4, []), "--weight-decay": (0, []), "--schedule": ("cosine", []), "--freeze": ("embed.weight", []),
              "--microbatch": (2, ["--global-batch", 8]), "--dtype": ("float64", []), "--kernels": ("plain", []), "--attention": ("chunked:4", []),
              "--reduction": ("fast", []), "--val-data": ("other.txt", []), "--eval-sequences": (2, ["--val-fraction", 0.1])},
    "allowed": {"--steps": (4, []), "--eval-every": (1, ["--val-fraction", 0.1])},
}
KEYS = {"--seq-len": "data.seq_len", "--val-fraction": "data.val_fraction", "--seed": "train.seed", "--global-batch": "batch.global",
        "--optimizer": "train.optimizer", "--momentum": "train.momentum", "--data": "data.train", "--val-data": "data.validation"}
# No effect for one process on a CPU or with a constant schedule, or derived from the batch and the ranks.
WITHOUT_EFFECT = {"--matmul-precision", "--compress", "--device", "--decay-steps", "--grad-accum"}


def rows():
    """Outcome -> the flags of its rows."""
    text = (SOURCE / "docs" / "guide" / "checkpoints.md").read_text()
    table = text.partition("### What may differ")[2].partition("\n###")[0]
    found = {outcome: set() for outcome in CHANGES}
    for settings, outcome in re.findall(r"^\| (.*?) \| (.*?) \|$", table, re.MULTILINE):
        kind = "noted" if "allowed, and noted in a warning" in outcome else "refused" if outcome.startswith("refused") else "allowed"
        found[kind] |= set(re.findall(r"`(--[\w-]+)`", settings))
    return found


class WhatMayDiffer(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = make_folder(cls)
        text = (GOLDEN / "text.bin").read_bytes()
        (cls.folder / "text.txt").write_bytes(text[:8000])
        (cls.folder / "other.txt").write_bytes(text[8000:16000])
        cls.runs = {}

    def begun(self, before):
        """A run trained with these flags, shared by all tests."""
        name = "run" + "".join(str(word) for word in before)
        if name not in self.runs:
            self.runs[name] = run(DTRAIN, *TINY, "--data", "text.txt", "--steps", 2, "--run-dir", name, *before, cwd=self.folder)
        return name

    def resumed(self, flag, value, before):
        """The status and the warnings of a run resumed with another value."""
        from_run = self.begun(before)
        copy = f"{from_run}{flag}"
        run("cp", "-r", from_run, copy, cwd=self.folder)
        words = [*TINY, "--data", "text.txt", "--steps", 3, "--run-dir", copy, "--resume", "auto", *before]
        result = run(DTRAIN, *overriding(words, flag, value), cwd=self.folder, status=None)
        return result, [line for line in result.stderr.splitlines() if "warning" in line and "checkpoints/step-2" in line]

    def test_the_table_holds_these_flags(self):
        self.assertEqual({outcome: flags - WITHOUT_EFFECT for outcome, flags in rows().items()},
                         {outcome: set(changes) for outcome, changes in CHANGES.items()})

    def test_each_flag_behaves_as_its_row_says(self):
        for outcome, changes in CHANGES.items():
            for flag, (value, before) in changes.items():
                result, warnings = self.resumed(flag, value, before)
                with self.subTest(f"{outcome}: {flag} {value}"):
                    self.assertEqual(result.returncode, USAGE if outcome == "refused" else 0, result.stderr)
                    self.assertEqual(bool(warnings), outcome == "noted", result.stderr)
                    if outcome == "refused":
                        error_line(result.stderr, re.compile(KEYS[flag]))


if __name__ == "__main__":
    unittest.main()
