"""Mutually exclusive settings in a file and in flags, or in a file that extends it: the later one wins, and one line names those
that it replaces."""

import json
import struct
import unittest

from dtrain_harness import SOURCE, USAGE, FolderTest, launched, run
from messages import assert_names

TEXT = SOURCE / "tests" / "golden" / "text.bin"
WEIGHTS = SOURCE / "tests" / "hf" / "llama"
PP = {"layout.strategy": "3d", "layout.pp": 2, "layout.dp": 1, "layout.tp": 1}
WSD = {"train.schedule": "wsd", "train.steps": 1000, "train.decay_steps": 500}


def value(config, key):
    section, name = key.split(".")
    return config[section][name]


class Conflicts(FolderTest):
    def resolved(self, settings, *flags, ranks=1, status=0):
        """The resolved configuration, and standard error, for a file with these settings and these flags."""
        file = self.folder / "file.json"
        file.write_text(json.dumps(settings))
        result = run(*launched(ranks, "--config", file, *flags, "--print-config"), status=status)
        return json.loads(result.stdout) if status == 0 else None, result.stderr

    def check(self, settings, flags, expected, ranks=1):
        with self.subTest(settings=settings, flags=flags):
            config, error = self.resolved(settings, *flags.split(), ranks=ranks)
            for key, wanted in expected.items():
                self.assertEqual(value(config, key), wanted, key)
            self.assertEqual(error.count(" replaces "), 1, error)
            self.assertRegex(error, r"\A(\[0\] )?dtrain: --[^\n]+\n\Z")

    def test_a_flag_overrides_the_conflicting_setting_of_a_file(self):
        for settings, flags, expected in (
                ({"data.validation": "v.txt"}, "--val-fraction 0.1", {"data.validation": "", "data.val_fraction": 0.1}),
                ({"data.val_fraction": 0.1}, "--val-data v.txt", {"data.validation": "v.txt", "data.val_fraction": 0}),
                ({"data.val_fraction": 0.1}, f"--data {TEXT}:1,{TEXT}:1", {"data.val_fraction": 0}),
                ({"train.epochs": 2}, "--steps 7", {"train.epochs": 0, "train.steps": 7}),
                ({"train.steps": 7}, "--epochs 2", {"train.epochs": 2}),
                (WSD, "--steps 100", {"train.decay_steps": 10}),
                ({"checkpoint.resume": "auto", "run.dir": "r"}, "--overwrite", {"checkpoint.resume": "none"}),
                ({"run.overwrite": True, "run.dir": "r"}, "--resume auto", {"run.overwrite": False}),
                ({"checkpoint.resume": "other"}, f"--init-from {WEIGHTS}", {"checkpoint.resume": "none"}),
                ({"checkpoint.init_from": "w"}, "--resume other", {"checkpoint.init_from": ""}),
                ({"machine.param_dtype": "bfloat16"}, "--dtype float64", {"machine.param_dtype": "float64"}),
                ({"machine.dtype": "float64"}, "--param-dtype float32", {"machine.dtype": "float32"}),
                ({"machine.kernels": "fused"}, "--dtype float16", {"machine.kernels": "plain"}),
                ({"machine.recompute": "gates"}, "--kernels plain", {"machine.recompute": "none"}),
                ({"machine.recompute": "gates"}, "--model llama", {"machine.recompute": "none"}),
                ({"machine.kernels": "plain"}, "--recompute gates", {"machine.kernels": "fused"}),
                ({"machine.kernels": "plain"}, "--compile", {"machine.kernels": "fused"}),
                ({"layout.strategy": "dp", "layout.local_ranks": 3}, "--devices cpu,cpu", {"layout.local_ranks": 2})):
            self.check(settings, flags, expected)

    def test_compatible_settings_are_kept(self):
        for settings, flags, kept in (({"data.validation": "v.txt"}, "--val-fraction 0", "data.validation"),
                                      ({"batch.microbatch": 2}, "--global-batch 8", "batch.microbatch"),
                                      ({"checkpoint.resume": "auto", "run.dir": "r"}, f"--init-from {WEIGHTS}",
                                       "checkpoint.resume"),
                                      ({"train.schedule": "wsd", "train.decay_steps": 50}, "--steps 100", "train.decay_steps")):
            with self.subTest(flags=flags):
                config, error = self.resolved(settings, *flags.split())
                self.assertEqual(value(config, kept), settings[kept])
                self.assertNotIn("replaces", error)

    def test_the_global_batch_overrides_the_other_batch_settings(self):
        all_three = {"batch.global": 8, "batch.microbatch": 2, "batch.grad_accum": 4}
        for settings, flags, expected in (
                (all_three, "--global-batch 16", (16, 2, 8)),
                (all_three, "--microbatch 4", (8, 4, 2)),
                (all_three, "--grad-accum 2", (8, 4, 2)),
                (all_three, "--microbatch 3 --grad-accum 3", (9, 3, 3)),
                (all_three, "--global-batch 16 --grad-accum 2", (16, 8, 2)),
                ({"batch.global": 4, "batch.microbatch": 1}, "--grad-accum 2", (4, 2, 2)),
                ({"batch.microbatch": 8, "batch.grad_accum": 2}, "--global-batch 32", (32, 8, 4))):
            self.check(settings, flags, dict(zip(("batch.global", "batch.microbatch", "batch.grad_accum"), expected)))
        config, error = self.resolved({"batch.global": 8, "batch.microbatch": 8}, "--global-batch", 4)
        self.assertIn("--global-batch 4 replaces --microbatch 8", error)
        self.assertEqual(value(config, "batch.global"), 4)
        _, error = self.resolved({}, "--global-batch", 8, "--microbatch", 2, "--grad-accum", 3, status=USAGE)  # all are flags
        self.assertIn("--global-batch 8 is not", error)

    def test_a_strategy_resets_the_settings_of_another(self):
        zero = {"layout.strategy": "zero", "layout.zero_stage": 3}
        hybrid = {"layout.strategy": "fsdp", "layout.fsdp_sharding": "hybrid", "layout.shard_size": 1}
        for settings, flags, expected in (
                (PP, "--strategy ddp", {"layout.pp": 1, "layout.dp": 2}),
                (zero, "--strategy fsdp", {"layout.zero_stage": 2}),
                (hybrid, "--strategy zero", {"layout.fsdp_sharding": "full", "layout.shard_size": 2}),
                (zero, "--strategy auto", {"layout.zero_stage": 2}),
                ({"layout.strategy": "ddp", "machine.compress": "bf16"}, "--strategy fsdp", {"machine.compress": "none"}),
                ({"layout.strategy": "fsdp", "layout.accumulate": "sharded"}, "--strategy ddp", {"layout.accumulate": "local"}),
                ({**PP, "layout.pp": 1, "layout.dp": 2}, "--tp 2", {"layout.dp": 1, "layout.tp": 2})):
            self.check(settings, flags, expected, ranks=2)
        self.check({"layout.strategy": "ddp", "machine.backend": "gloo"}, "--strategy dp", {"machine.backend": "local"})
        config, error = self.resolved({"layout.zero_stage": 3, "layout.strategy": "zero"}, "--strategy", "zero", ranks=2)
        self.assertEqual((value(config, "layout.zero_stage"), "replaces" in error), (3, False))

    def test_a_setting_of_another_strategy_selects_it(self):
        for settings, flags, expected in (
                ({"layout.strategy": "ddp"}, "--zero-stage 3", {"layout.strategy": "zero", "layout.zero_stage": 3}),
                ({"layout.strategy": "fsdp"}, "--zero-stage 1", {"layout.strategy": "zero"}),
                ({"layout.strategy": "zero"}, "--fsdp-sharding grad-op", {"layout.strategy": "fsdp"}),
                ({"layout.strategy": "ddp"}, "--tp 2", {"layout.strategy": "3d", "layout.tp": 2, "layout.dp": 1}),
                ({"layout.strategy": "fsdp"}, "--pp 2", {"layout.strategy": "3d", "layout.data_axis": "fsdp", "layout.pp": 2}),
                ({"layout.strategy": "auto"}, "--tp 2", {"layout.strategy": "3d", "layout.tp": 2})):
            self.check(settings, flags, expected, ranks=2)
        self.check({"layout.strategy": "ddp"}, "--local-ranks 3", {"layout.strategy": "dp", "layout.local_ranks": 3})

    def test_sizes_without_a_strategy_are_rejected_with_flags_that_fit(self):
        for ranks, flags, advice in ((2, "--tp 2", "--strategy tp --tp 2"), (2, "--pp 2", "--strategy pp --pp 2"),
                                     (4, "--tp 2", "--strategy 3d --pp 1 --tp 2"), (4, "--pp 2", "--strategy 3d --pp 2 --tp 1"),
                                     (4, "--pp 2 --tp 2", "--strategy 3d --pp 2 --tp 2"), (4, "--dp 2 --tp 2", "--strategy 3d --dp 2 --tp 2")):
            with self.subTest(ranks=ranks, flags=flags):
                for command in ([], ["doctor"]):
                    error = run(*launched(ranks, *command, *flags.split(), "--print-config"), status=USAGE).stderr
                    self.assertTrue(error.endswith(f" need --strategy: use {advice}\n"), error)
                    self.assertNotIn("ddp", error)
                run(*launched(ranks, *advice.split(), "--print-config"))
        error = run(*launched(2, "--tp", "3", "--print-config"), status=USAGE).stderr
        assert_names(error, "--tp 3", "2 ranks")

    def test_a_file_overrides_those_that_it_extends(self):
        (self.folder / "base.json").write_text(json.dumps({"data.validation": "v.txt", "train.epochs": 3}))
        config, error = self.resolved({"extends": "base.json", "data.val_fraction": 0.1, "train.steps": 5})
        self.assertEqual((value(config, "data.validation"), value(config, "train.epochs")), ("", 0))
        self.assertEqual(error.count("replaces"), 2)
        both = {"data.validation": "v.txt", "data.val_fraction": 0.1}
        assert_names(self.resolved(both, status=USAGE)[1], "--val-data", "--val-fraction")

    def test_deepspeed_files_rank_between_the_file_and_the_flags(self):
        (self.folder / "ds.json").write_text(json.dumps({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2,
                                                         "gradient_accumulation_steps": 4}))
        config, _ = self.resolved({"batch.global": 64}, "--deepspeed-config", self.folder / "ds.json", "--global-batch", 16)
        self.assertEqual(config["batch"], {"global": 16, "microbatch": 2, "grad_accum": 8})

    def test_other_data_replaces_the_vocabulary_of_a_file(self):
        header = struct.pack("<8sIIQQ", b"\x89DTOK\r\n\x1a", 1, 2, 300, 2000)
        checksum = 0xcbf29ce484222325
        for byte in header:
            checksum = (checksum ^ byte) * 0x100000001b3 % 2**64
        numbers = self.folder / "numbers.dtok"
        numbers.write_bytes(header + struct.pack("<Q2000H", checksum, *(i % 300 for i in range(2000))))
        for vocab, wanted in ((256, 300), (512, 512)):  # the data's own; set explicitly
            config, error = self.resolved({"data.train": str(TEXT), "model.vocab": vocab}, "--data", numbers)
            self.assertEqual(value(config, "model.vocab"), wanted)
            self.assertEqual("replaces --vocab 256" in error, vocab != wanted, error)


if __name__ == "__main__":
    unittest.main()
