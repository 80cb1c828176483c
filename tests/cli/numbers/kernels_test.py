"""Fused kernels compared with plain ones: every layout, long sequences, threads, instruction sets; and ranks whose CPUs round
differently, simulated on one machine by lowering one rank's instruction set."""

import os
import pathlib
import re
import unittest

from dtrain_harness import DTRAIN, GOLDEN, USAGE, FolderTest, final_model, launched, metrics_of, run
from messages import assert_names, lines_naming
from resume_test import ResumeTest
from rounding import condition_bound, roundings

LEVELS, LENGTH, SEQUENCES, STEPS = 2, 80, 4, 3
WORK = ("--layers", LEVELS, "--width", 32, "--heads", 2, "--neurons", 72, "--seq-len", LENGTH, "--global-batch", SEQUENCES, "--steps", STEPS,
        "--lr", 1e-2, "--data", GOLDEN / "text.bin", "--checkpoint-every", "none")
LAYOUTS = {"single": (1, ""), "accumulation": (1, "--microbatch 1"), "fsdp": (2, "--strategy fsdp"),
           "tp": (2, "--strategy tp"), "tp, shared heads": (4, "--strategy tp"), "tp, vocabulary": (2, "--strategy tp --tp-vocab on"),
           "pp": (2, "--strategy pp"), "recompute": (1, "--recompute level"), "gates": (1, "--recompute gates")}

UNTIED = ("single", "pp", "gates")  # layouts whose order of blocks or of gradients depends on ties
CPU_FLAGS = re.search("^flags.*:(.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)[1].split()
LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY")


def bfloat16_instructions():
    """The bfloat16 instructions that the CPU and the environment allow: AMX, AVX512-BF16, or None."""
    if "avx512_bf16" not in CPU_FLAGS or any(os.environ.get(name) for name in LIMITS):
        return None
    return "AMX" if "amx_bf16" in CPU_FLAGS else "AVX512-BF16"


def numbers(run_dir):
    return [line[key] for line in metrics_of(run_dir) if "event" not in line for key in ("loss", "grad_norm")]


class Kernels(FolderTest):
    def train(self, name, *flags, ranks=1, threads=1, environment=None):
        run_dir = self.folder / name
        flags = [*WORK, "--threads", threads, "--run-dir", run_dir, *flags]
        return run_dir, run(*launched(ranks, *flags), environment=environment).stderr

    def assert_near(self, found, expected, tolerance):
        for a, b in zip(numbers(found), numbers(expected), strict=True):
            self.assertLessEqual(abs(a - b), tolerance * abs(b))

    def assert_same_bits(self, found, expected):
        self.assertEqual(numbers(found), numbers(expected))
        self.assertEqual(final_model(found).read_bytes(), final_model(expected).read_bytes())

    def bound(self, dtype, *flags):
        """Bound of the relative errors of `numbers` in `dtype`."""
        flags = ("--dtype", "float64", "--kernels", "plain", *flags)

        def results_of(model):
            run_dir, _ = self.train("conditioned", *flags, "--init-from", model, "--overwrite")
            return {index: [number] for index, number in enumerate(numbers(run_dir))}
        initial = final_model(self.train("initial", *flags, "--steps", 1, "--lr", 0, "--overwrite")[0])
        count = roundings(LEVELS, STEPS, LENGTH * SEQUENCES, dtype)
        return condition_bound(dtype, count, results_of, initial, self.folder)

    def test_fused_kernels_match_plain_ones_in_float64_in_every_layout(self):
        """Every layout with plain and with fused kernels, without chunks: tests/parity."""
        for tied in ("on", "off"):
            flags = ("--dtype", "float64", "--tie-layers", tied)
            bound = 2 * self.bound("float64", "--tie-layers", tied)
            plain, _ = self.train(f"plain {tied}", *flags, "--kernels", "plain")
            chunks, _ = self.train(f"plain chunks {tied}", *flags, "--kernels", "plain", "--attention", "chunked:24")
            self.assert_near(chunks, plain, bound)
            for number, (name, (ranks, words)) in enumerate(LAYOUTS.items()):
                if tied == "off" and name not in UNTIED:
                    continue
                attention = ("full", "chunked:24")[(number + (tied == "on")) % 2]
                with self.subTest(name, tied=tied, attention=attention):
                    found, _ = self.train(f"{name} {tied}", *flags, "--attention", attention, *words.split(), ranks=ranks)
                    self.assert_near(found, plain, bound)

    def test_threads_never_change_a_bit(self):
        for dtype, attention, numbers_of_threads in (("float32", "full", (2, 3)), ("float32", "chunked:16", (3,)), ("bfloat16", "full", (3,)),
                                                     ("bfloat16", "chunked:16", (2,)), ("float64", "chunked:16", (3,))):
            flags = ("--dtype", dtype, "--attention", attention, "--eval-every", 2, "--val-fraction", 0.01)
            one, text = self.train(f"{dtype} {attention} 1", *flags, "--verbose")
            self.assertRegex(text, r"(?m)^reproducibility class (?!.*threads=)")
            for threads in numbers_of_threads:
                with self.subTest(dtype=dtype, attention=attention, threads=threads):
                    several, _ = self.train(f"{dtype} {attention} {threads}", *flags, threads=threads)
                    self.assert_same_bits(several, one)

    def test_the_data_axis_never_changes_a_bit(self):
        one, _ = self.train("one", "--microbatch", 1)
        for name, ranks, flags in (("ddp", 2, "--strategy ddp --microbatch 1"), ("compiled", 2, "--strategy ddp --microbatch 1 --compile"),
                                   ("zero", 4, "--strategy zero --zero-stage 3 --microbatch 1"),
                                   ("gates", 2, "--strategy fsdp --microbatch 1 --recompute gates")):
            with self.subTest(name):
                several, text = self.train(name, *flags.split(), ranks=ranks)
                self.assert_same_bits(several, one)
                self.assertEqual(bool(lines_naming(text, "--compile", "--kernels fused")), name == "compiled")

    def test_every_instruction_set_trains_the_same_to_rounding(self):
        settings = ({"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"},
                    {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}, {"ONEDNN_MAX_CPU_ISA": "AVX2"})
        exact, _ = self.train("exact", "--dtype", "float64", "--kernels", "plain")
        for dtype in ("float64", "float32", "bfloat16"):
            bound = self.bound(dtype)
            for index, environment in enumerate(({}, *settings[:3 if dtype == "bfloat16" else 2])):
                with self.subTest(dtype=dtype, environment=environment):
                    found, text = self.train(f"{dtype} {index}", "--dtype", dtype, environment=environment)
                    self.assert_near(found, exact, bound)
                    is_slow = dtype == "bfloat16" and bool(environment or not bfloat16_instructions())
                    self.assertEqual(bool(lines_naming(text, "warning", "--dtype bfloat16")), is_slow)
                    if is_slow and environment:
                        why = f"ONEDNN_MAX_CPU_ISA={environment['ONEDNN_MAX_CPU_ISA']}" if "avx512_bf16" in CPU_FLAGS else "CPU"
                        self.assertIn(why, text)

    def test_only_onednn_limits_keep_bfloat16_from_cpu_instructions(self):
        # MKL multiplies no bfloat16 here.
        _, text = self.train("mkl", "--dtype", "bfloat16", "--steps", 1, environment={"MKL_CBWR": "COMPATIBLE"})
        self.assertEqual(bool(lines_naming(text, "warning", "--dtype bfloat16")), bfloat16_instructions() is None)
        how = "by " + bfloat16_instructions() if bfloat16_instructions() else "as float32"
        self.assertRegex(text, f"(?m)^kernels         .*, bfloat16 multiplied {how}$")

    def test_the_start_table_names_the_kernels(self):
        for flags, line in (((), "fused, full .*"), (("--kernels", "plain"), "plain"), (("--dtype", "float16"), "plain"),
                            (("--attention", "chunked:20"), "fused, .* 20 .*"),
                            (("--kernels", "plain", "--attention", "chunked:20"), "plain, .* 20 .*"),
                            (("--kernels", "plain", "--seq-len", "400"), "plain"),
                            (("--attention", "chunked:80"), "fused, full .*"),
                            (("--seq-len", "400"), "fused, .* 128 .*")):
            with self.subTest(flags):
                _, text = self.train("run" + "".join(flags), "--steps", 1, *flags)
                self.assertRegex(text, rf"(?m)^kernels         float(32|16): {line}$")

    def test_unsupported_combinations_are_rejected_in_one_line(self):
        for flags, parts in ((("--kernels", "fused", "--dtype", "float16"), ("--kernels fused", "float16", "--kernels plain")),
                             (("--kernels", "plain", "--recompute", "gates"), ("--recompute gates", "--kernels fused", "--recompute level")),
                             (("--dtype", "float16", "--recompute", "gates"), ("--recompute gates", "float16")),
                             (("--model", "llama", "--recompute", "gates"), ("--recompute gates", "--model llama", "--recompute level")),
                             (("--kernels", "plain", "--compile"), ("--compile", "--kernels plain")),
                             (("--attention", "chunked:0"), ("--attention", "chunked:C")),
                             (("--attention", "linear"), ("--attention", "found \"linear\""))):
            with self.subTest(flags):
                result = run(DTRAIN, *WORK, "--run-dir", self.folder / "refused", *flags, status=USAGE)
                self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
                for part in parts:
                    self.assertIn(part, result.stderr)
                self.assertFalse((self.folder / "refused").exists())


# The other ranks' limits, if any, are removed, since equal limits would make no difference.
WRAPPER = """unset ATEN_CPU_CAPABILITY ONEDNN_MAX_CPU_ISA GLIBC_TUNABLES
if [ "$RANK" = 1 ]; then export {}; fi
exec "$@"
"""
LOWEST = "ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41"
HAS_AVX2 = " avx2 " in pathlib.Path("/proc/cpuinfo").read_text()


class CpuTypes(ResumeTest):
    def mixed(self, *flags, setting=LOWEST, ranks=2, status=0, **options):
        return self.wrapped(WRAPPER.format(setting), *flags, ranks=ranks, status=status, **options)

    def test_different_cpu_types_are_rejected_with_their_ranks(self):
        tunables = "GLIBC_TUNABLES=glibc.cpu.hwcaps=-FMA"
        for setting, shown in (("ATEN_CPU_CAPABILITY=default" if HAS_AVX2 else LOWEST, "rank 1 has DEFAULT/"),
                               ("ONEDNN_MAX_CPU_ISA=SSE41", "ONEDNN_MAX_CPU_ISA=SSE41"), (tunables, tunables)):
            result = self.mixed("--global-batch", "6", setting=setting, ranks=3, status=2)
            error = [line for line in result.stderr.splitlines() if "error" in line][0]
            self.assertIn(shown, error)
            self.assertRegex(error, r"ranks 0, 2 have \w+/")
            self.assertIn("--mixed-cpus on", error)
            self.assertFalse((self.run_dir / "metrics.jsonl").exists())

    def test_mixed_cpus_are_reported_and_replicas_synchronised_at_checkpoints(self):
        # Each tensor-parallel rank updates replicated parameters with its own rounding; a save takes half from each rank.
        flags = ("--mixed-cpus", "on", "--strategy", "tp", "--checkpoint-every", "20", "--width", "64", "--neurons", "256",
                 "--dropout", "0.1", "--verbose")
        result = self.mixed(*flags, steps=40)
        assert_names(result.stderr, "reproducibility class", "none", "--mixed-cpus", "rank 0")
        self.assertEqual(lines_naming(result.stderr, "warning", "--mixed-cpus"), [])
        # Every rank continued with the contents of the checkpoint of step 20.
        whole = self.root / "again"
        self.mixed(*flags, "--resume", self.run_dir / "checkpoints/step-20", steps=40, run_dir=whole)
        self.assertEqual(self.losses(whole), self.losses()[20:])
        result = self.run_command([DTRAIN, "checkpoint", "diff", self.run_dir, whole])
        self.assertNotIn("differs", result.stdout)

    def test_a_validation_loss_belongs_to_the_saved_replicas(self):
        # Each tensor-parallel rank updates replicated parameters with its own rounding.
        flags = ("--mixed-cpus", "on", "--strategy", "tp", "--eval-sequences", "8", "--checkpoint-every", "20", "--eval-every", "20")
        self.mixed(*flags, steps=21)
        # A start in another folder finds no loss for step 20, and evaluates the loaded weights.
        again = self.root / "evaluated-again"
        self.mixed(*flags, "--resume", self.run_dir / "checkpoints/step-20", steps=21, run_dir=again)
        self.assertEqual([(line["step"], line["val_loss"]) for line in self.events("eval", again)],
                         [(line["step"], line["val_loss"]) for line in self.events("eval")])

    def test_mixed_cpus_without_effect_triggers_a_warning(self):
        result = self.single("--mixed-cpus", "on", steps=1)
        assert_names(result.stderr, "warning", "--mixed-cpus")


if __name__ == "__main__":
    unittest.main()
