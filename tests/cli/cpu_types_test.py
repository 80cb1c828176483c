"""Ranks whose CPUs round differently, made on one machine by lowering one rank's instruction set."""

import pathlib
import unittest

from messages import assert_names, lines_naming
from resume_test import ResumeTest
from train_test import DTRAIN

# What other ranks are lowered to, if all are, would be no difference.
WRAPPER = """unset ATEN_CPU_CAPABILITY ONEDNN_MAX_CPU_ISA GLIBC_TUNABLES
if [ "$RANK" = 1 ]; then export {}; fi
exec "$@"
"""
LOWEST = "ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41"
HAS_AVX2 = " avx2 " in pathlib.Path("/proc/cpuinfo").read_text()


class CpuTypes(ResumeTest):
    def mixed(self, *flags, setting=LOWEST, ranks=2, status=0, **options):
        return self.wrapped(WRAPPER.format(setting), *flags, ranks=ranks, status=status, **options)

    def test_different_types_are_refused_with_their_ranks(self):
        tunables = "GLIBC_TUNABLES=glibc.cpu.hwcaps=-FMA"
        for setting, shown in (("ATEN_CPU_CAPABILITY=default" if HAS_AVX2 else LOWEST, "rank 1 has DEFAULT/"),
                               ("ONEDNN_MAX_CPU_ISA=SSE41", "ONEDNN_MAX_CPU_ISA=SSE41"), (tunables, tunables)):
            result = self.mixed("--global-batch", "6", setting=setting, ranks=3, status=2)
            error = [line for line in result.stderr.splitlines() if "error" in line][0]
            self.assertIn(shown, error)
            self.assertRegex(error, r"ranks 0, 2 have \w+/")
            self.assertIn("--mixed-cpus on", error)
            self.assertFalse((self.run_dir / "metrics.jsonl").exists())

    def test_allowed_they_say_so_and_copies_are_made_equal_at_checkpoints(self):
        # Each tensor-parallel rank updates the parameters that several hold alike, from gradients of its own rounding;
        # a save takes each rank's half.
        flags = ("--mixed-cpus", "on", "--strategy", "tp", "--checkpoint-every", "20", "--width", "64", "--neurons", "256",
                 "--dropout", "0.1", "--verbose")
        result = self.mixed(*flags, steps=40)
        assert_names(result.stderr, "bitwise class", "none", "--mixed-cpus", "rank 0")
        self.assertEqual(lines_naming(result.stderr, "warning", "--mixed-cpus"), [])
        # Every rank went on with the contents of the checkpoint of step 20.
        whole = self.root / "again"
        self.mixed(*flags, "--resume", self.run_dir / "checkpoints/step-20", steps=40, run_dir=whole)
        self.assertEqual(self.losses(whole), self.losses()[20:])
        result = self.run_command([DTRAIN, "checkpoint", "diff", self.run_dir, whole])
        self.assertNotIn("differs", result.stdout)

    def test_a_validation_loss_is_of_the_copies_that_are_saved(self):
        # Each tensor-parallel rank updates the parameters that several hold alike, from gradients of its own rounding.
        flags = ("--mixed-cpus", "on", "--strategy", "tp", "--eval-sequences", "8", "--checkpoint-every", "20", "--eval-every", "20")
        self.mixed(*flags, steps=21)
        # A start in another folder finds no loss of step 20, and evaluates what it has read.
        again = self.root / "evaluated-again"
        self.mixed(*flags, "--resume", self.run_dir / "checkpoints/step-20", steps=21, run_dir=again)
        self.assertEqual([(line["step"], line["val_loss"]) for line in self.events("eval", again)],
                         [(line["step"], line["val_loss"]) for line in self.events("eval")])

    def test_without_effect_it_is_told(self):
        result = self.single("--mixed-cpus", "on", steps=1)
        assert_names(result.stderr, "warning", "--mixed-cpus")


if __name__ == "__main__":
    unittest.main()
