"""Sharded strategies: equal files, the start table, rejections, settings without effect."""

import unittest

from dtrain_harness import CONSTANT_RATE
from dtrain_harness import DTRAIN, SOURCE, USAGE, FolderTest, final_model, front_end_alone, launched, metrics_of, run
from messages import assert_names, lines_naming

TINY = [*CONSTANT_RATE, "--layers", "2", "--width", "32", "--heads", "2", "--neurons", "64", "--seq-len", "32", "--global-batch", "8",
        "--lr", "3e-3", "--val-fraction", "0.05", "--eval-sequences", "13", "--eval-every", "2", "--dropout", "0.1",
        "--threads", "1", "--steps", "3", "--data", SOURCE / "tests/golden/text.bin"]

class Case(FolderTest):
    program = DTRAIN

    def train(self, name, *flags, ranks=2, **options):
        command = launched(ranks, *TINY, "--run-dir", self.folder / name, *flags, program=self.program)
        return run(*command, **options).stderr

    def lines(self, name):
        return metrics_of(self.folder / name)


class Results(Case):
    def outcome(self, name):
        numbers = [[line[key] for key in ("step", "loss", "grad_norm", "val_loss") if key in line]
                   for line in self.lines(name)]
        return numbers, final_model(self.folder / name).read_bytes()

    # Tied and untied levels under each of them: tests/parity/data_axis_test.cpp.
    SHARDINGS = {
        "on": [(2, "--strategy fsdp"), (4, "--strategy deepspeed --zero-stage 2"),
               (2, "--strategy zero --zero-stage 3 --accumulate local")],
        "off": [(2, "--strategy fsdp --fsdp-sharding grad-op --backend gloo"), (2, "--strategy zero --zero-stage 1"),
                (4, "--strategy fsdp --fsdp-sharding hybrid --shard-size 2"),
                (2, "--strategy fsdp --wrap size:5000 --forward-prefetch on --limit-gathers 3")]}

    def test_every_sharding_gives_the_model_file_and_losses_of_one_process(self):
        for tied, shardings in self.SHARDINGS.items():
            self.train(f"one-{tied}", "--tie-layers", tied, "--grad-accum", "4", ranks=1)
            expected = self.outcome(f"one-{tied}")
            self.assertEqual(len(expected[0]), 1 + 3 + 1 + 2 + 1 + 1)  # start, steps, memory, evaluations, checkpoint, end
            for number, (ranks, flags) in enumerate(shardings):
                name = f"{tied}-{number}"
                with self.subTest(f"tied {tied}, {flags}"):
                    self.train(name, "--tie-layers", tied, "--grad-accum", str(4 // ranks), *flags.split(), ranks=ranks)
                    self.assertEqual(self.outcome(name), expected)


class Reporting(Case):
    def test_the_start_reports_gathers_and_reductions_and_memory_shrinks(self):
        fields = {}
        for name, flags in (("ddp", "--strategy ddp"), ("full", "--strategy fsdp")):
            text = self.train(name, "--tie-layers", "off", "--verbose", *flags.split())
            fields[name] = self.lines(name)[0]
            self.assertEqual(bool(lines_naming(text, "gathers")), name == "full", text)
        assert_names(text, "4 units of 2 shards", "7 gathers")
        self.assertNotIn("units_per_step", fields["ddp"])
        units = fields["full"]["units_per_step"]
        self.assertEqual((units["units"], units["gathers"], units["reductions"], units["max_gathered"]), (4, 7, 4, 2))
        memory = {name: field["memory_predicted_bytes"] for name, field in fields.items()}
        for part in ("parameters", "gradients", "optimizer"):
            self.assertEqual(2 * memory["full"][part], memory["ddp"][part], part)

    def test_frozen_parameters_are_only_gathered_and_have_no_gradients_and_moments(self):
        encoder = 4 * 2 * 32 * 64  # bytes
        ranks = 2
        for flags in ("--strategy ddp", "--strategy fsdp", "--strategy zero --zero-stage 2"):
            with self.subTest(flags):
                facts = []
                for name, frozen in (("free", ()), ("frozen", ("--freeze", "encoder"))):
                    self.train(name, "--overwrite", "--grad-accum", "1", *frozen, *flags.split(), ranks=ranks)
                    facts.append(self.lines(name)[0])
                free, frozen = (fact["memory_predicted_bytes"] for fact in facts)
                shards = 1 if "ddp" in flags else ranks
                self.assertEqual(free["optimizer"] - frozen["optimizer"], 2 * encoder // shards)
                self.assertEqual(free["gradients"] - frozen["gradients"], encoder // shards)
                self.assertEqual(free["parameters"], frozen["parameters"])
                if "ddp" in flags:
                    continue
                free, frozen = (fact["units_per_step"] for fact in facts)
                self.assertEqual(free["reduction_bytes"] - frozen["reduction_bytes"], encoder // 2)
                self.assertEqual(free["gather_bytes"] - frozen["gather_bytes"], encoder // 2 if "zero" in flags else 0)

    def test_every_sharding_with_frozen_parameters_gives_the_model_file_of_one_process(self):
        frozen = ("--freeze", "encoder,lm_head")
        self.train("one", *frozen, "--grad-accum", "4", ranks=1)
        expected = final_model(self.folder / "one").read_bytes()
        for number, (ranks, flags) in enumerate(((2, "--strategy ddp"), (2, "--strategy fsdp"), (4, "--strategy zero --zero-stage 1"),
                                                 (4, "--strategy fsdp --fsdp-sharding hybrid --shard-size 2"))):
            with self.subTest(flags):
                self.train(f"many{number}", *frozen, "--grad-accum", str(4 // ranks), *flags.split(), ranks=ranks)
                self.assertEqual(final_model(self.folder / f"many{number}").read_bytes(), expected)

    def refused(self, flags, *parts, ranks=4):
        variables = {"RANK": "0", "WORLD_SIZE": str(ranks), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": str(ranks)}
        result = run(DTRAIN, *TINY, "--run-dir", self.folder / "run", *flags.split(), environment=variables, status=USAGE)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        for part in parts:
            self.assertIn(part, result.stderr)
        self.assertFalse((self.folder / "run").exists())

    def test_invalid_layouts_are_rejected_in_one_line(self):
        hybrid = "--strategy fsdp --fsdp-sharding hybrid"
        self.refused(f"{hybrid} --shard-size 3", "--shard-size 3", "4")
        self.refused("--strategy fsdp --shard-size 2", "--shard-size 2", "hybrid")
        self.refused("--strategy fsdp --wrap size:x", "--wrap", "size:x", "size:N")
        self.refused("--strategy ddp --accumulate sharded", "--accumulate sharded", "--strategy ddp")
        self.refused("--strategy zero --zero-stage 4", "--zero-stage", "4", "3")
        self.refused("--strategy fsdp --fsdp-sharding most", "--fsdp-sharding", "most", "grad-op")
        self.refused("--strategy fsdp --limit-gathers 0", "--limit-gathers", "0")
        self.refused("--strategy fsdp --backward-prefetch soon", "--backward-prefetch", "soon", "post")

    def test_settings_without_effect_trigger_one_warning(self):
        self.program = front_end_alone(self.folder)
        for flags, flag in (("--strategy ddp --wrap none", "--wrap"),
                            ("--strategy ddp --backward-prefetch none", "--backward-prefetch"),
                            ("--strategy zero --zero-stage 2 --forward-prefetch on", "--forward-prefetch"),
                            ("--strategy zero --zero-stage 1 --limit-gathers 3", "--limit-gathers"),
                            ("--strategy fsdp --forward-prefetch on --limit-gathers 1", "--forward-prefetch"),
                            ("--strategy ddp --zero-stage 3", "--zero-stage"),
                            ("--strategy ddp --zero-stage 2", "--zero-stage"),
                            ("--strategy ddp --fsdp-sharding full", "--fsdp-sharding"),
                            ("--strategy zero --fsdp-sharding none", "--fsdp-sharding"),
                            ("--strategy ddp --fsdp-sharding grad-op", "--fsdp-sharding"),
                            ("--strategy fsdp --zero-stage 3", "--zero-stage"),
                            ("--strategy fsdp --fsdp-sharding grad-op --backward-prefetch post", "--backward-prefetch"),
                            ("--strategy fsdp --wrap none --forward-prefetch on", "--forward-prefetch"),
                            ("--strategy fsdp --backward-prefetch none --limit-gathers 3", "--limit-gathers"),
                            ("--strategy ddp --dtype bfloat16 --param-dtype float32", "--dtype bfloat16")):
            with self.subTest(flags):
                text = self.train("run", *flags.split(), environment={"STAND_IN_STATUS": "0"})
                self.assertEqual(len(lines_naming(text, "warning", flag)), 1, text)
        self.program = DTRAIN
        text = self.train("run", "--strategy", "fsdp", "--wrap", "size:9", "--backward-prefetch", "post",
                          "--limit-gathers", "1")
        self.assertEqual(lines_naming(text, "warning"), [])

    def test_counts_with_their_own_order_of_sums_trigger_a_warning_and_are_named(self):
        for flags, advice in (("--grad-accum 3", "--accumulate local"),
                              ("--grad-accum 3 --accumulate local", None), ("--grad-accum 2", None)):
            with self.subTest(flags):
                text = self.train("run", "--overwrite", "--global-batch", "12", "--strategy", "fsdp", *flags.split())
                self.assertEqual(text.count("warning: 2 ranks with --grad-accum 3 add gradients"), int(advice is not None), text)
                has_order = "grad-accum=3 dp=2 shard-size=2 accumulate=sharded" in self.lines("run")[0]["bitwise_class"]
                self.assertEqual(has_order, advice is not None)
                self.assertIn(advice or "", text)


if __name__ == "__main__":
    unittest.main()
