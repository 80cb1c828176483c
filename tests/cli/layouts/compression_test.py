"""--compress on the command line: reported and measured savings and costs, supported layouts, rejected settings."""

import json
import unittest

from dtrain_harness import CONSTANT_RATE, DTRAIN, DTRUN, FolderTest, GOLDEN, USAGE, metrics_of, run
from messages import assert_names

SMALL = [*CONSTANT_RATE, "--layers", 2, "--width", 32, "--heads", 2, "--neurons", 128, "--seq-len", 32, "--threads", 1, "--data", GOLDEN / "text.bin",
         "--global-batch", 4, "--microbatch", 1, "--compress-min-elements", 512]


class Compression(FolderTest):
    def train(self, name, *flags, ranks=2, strategy=("--strategy", "ddp"), steps=4, status=0):
        return run(DTRUN, "-n", ranks, "--", DTRAIN, *SMALL, *strategy, "--steps", steps, "--run-dir", self.folder / name, *flags,
                   status=status)

    def lines(self, name):
        return metrics_of(self.folder / name)

    def steps(self, name):
        return [line for line in self.lines(name) if "event" not in line]

    def model(self, name):
        return (self.folder / name / "final" / "model.safetensors").read_bytes()

    def test_bytes_are_saved_and_reported_and_memory_is_predicted(self):
        self.train("plain")
        whole = self.steps("plain")[-1]["comm_bytes"]
        self.assertNotIn("bytes_saved", self.steps("plain")[-1])
        for scheme, most in (("bf16", 0.55), ("fp16", 0.55), ("topk:0.01", 0.025), ("powersgd:2", 0.2)):
            with self.subTest(scheme):
                result = self.train(scheme.replace(":", ""), "--compress", scheme)
                lines = self.lines(scheme.replace(":", ""))
                last = self.steps(scheme.replace(":", ""))[-1]
                self.assertLess(last["comm_bytes"], most * whole)
                self.assertAlmostEqual(last["bytes_saved"] + last["comm_bytes"], whole, delta=0.02 * whole)
                self.assertGreater(last["residual_norm"], 0)
                self.assertGreater(last["compress_seconds"], 0)
                start = lines[0]["compression"]
                self.assertAlmostEqual(start["bytes"], last["comm_bytes"], delta=2000)
                self.assertAlmostEqual(start["whole_bytes"], whole, delta=0.02 * whole)
                self.assertIn(f"compression     {scheme}: ", result.stdout + result.stderr)
                self.assertIn(f"compress={scheme} ", result.stdout + result.stderr)
                (memory,) = [line for line in lines if line.get("event") == "memory"]
                # The residuals alone are 300 KiB.
                self.assertAlmostEqual(memory["peak_bytes"], memory["predicted_bytes"], delta=128 << 10)

    def test_a_stopped_run_has_the_bits_of_an_uninterrupted_one(self):
        for scheme in ("topk:0.02", "powersgd:2"):
            name = scheme.replace(":", "")
            flags = ["--compress", scheme, "--compress-warmup", 2, "--checkpoint-every", 3]
            self.train("whole" + name, *flags, steps=8)
            self.train("parts" + name, *flags, steps=3)
            self.train("parts" + name, *flags, "--resume", "auto", steps=8)
            self.assertEqual(self.model("parts" + name), self.model("whole" + name))
            self.train("parts" + name, *flags, "--resume", "auto", ranks=4, steps=10)
            result = self.train("parts" + name, *flags, "--resume", "auto", ranks=1, steps=11)
            assert_names(result.stderr, "--compress")

    def test_float16_with_skipped_steps_threads_of_one_process_and_shards_train(self):
        self.train("half", "--compress", "topk:0.02", "--dtype", "float16", "--lr", 0.01, steps=8)
        lines = self.steps("half")
        self.assertTrue(all(abs(line["residual_norm"]) < 1e6 for line in lines), "no residual is poisoned")
        run(DTRAIN, *SMALL, "--strategy", "dp", "--local-ranks", 2, "--compress", "topk:0.02", "--steps", 4, "--run-dir", self.folder / "threads")
        self.train("processes", "--compress", "topk:0.02")
        self.assertEqual(self.model("threads"), self.model("processes"))
        self.train("hybrid", "--compress", "powersgd:2", ranks=4,
                   strategy=("--strategy", "fsdp", "--fsdp-sharding", "hybrid", "--shard-size", 2))
        self.train("stages", "--compress", "topk:0.02", "--grad-accum", 2, ranks=4, strategy=("--strategy", "3d", "--pp", 2, "--dp", 2))

    def test_flushed_residuals_are_no_spike(self):
        flags = ["--spike-guard", "skip", "--lr", 0.003, "--compress"]
        self.train("guarded", *flags, "topk:0.01", steps=60)
        before = self.steps("guarded")
        for name, more in (("warmup", ["topk:0.01", "--compress-warmup", 200]), ("min", ["topk:0.01", "--compress-min-elements", 10**6]),
                           ("bf16", ["bf16"])):
            result = self.train(name, *flags, *more, "--resume", self.folder / "guarded", steps=62)
            after = self.steps(name)
            self.assertGreater(after[0]["grad_norm"], 3 * before[-1]["grad_norm"], "this test needs a debt")
            self.assertLess(after[1]["residual_norm"], 0.1 * before[-1]["residual_norm"], "which is paid")
            self.assertNotIn(": spike:", result.stderr)
        # Nor are compressed steps after a warm-up, whose norms are larger.
        result = self.train("end", *flags, "topk:0.01", "--compress-warmup", 60, "--spike-threshold", 3, steps=80)
        self.assertNotIn(": spike:", result.stderr)

    def test_invalid_settings_are_rejected_or_noted(self):
        for value in ("topk:0", "topk:1", "topk:-0.1", "topk:nan", "topk:", "topk", "powersgd:0", "powersgd:1025", "powersgd:1.5", "gzip", ""):
            with self.subTest(value):
                result = run(DTRAIN, *SMALL, "--compress", value, "--steps", 1, "--run-dir", self.folder / "no", status=USAGE)
                self.assertIn("--compress", result.stderr)
                self.assertIn("powersgd:RANK", result.stderr)
        self.train("small", "--compress", "powersgd:4", "--compress-min-elements", 10**6)
        start = self.lines("small")[0]["compression"]
        self.assertEqual(start["bytes"], start["whole_bytes"])
        result = self.train("alike", "--compress", "topk:0.0100", steps=1)
        self.assertIn("compression     topk:0.01: ", result.stderr + result.stdout)
        for flags, names in ((("topk:0.5", "--reduce-dtype", "bfloat16"), ("--compress topk:0.5", "2 replicas", "1")),
                             (("bf16", "--reduce-dtype", "bfloat16"), ("--compress bf16", "bfloat16"))):
            assert_names(self.train("no", "--compress", *flags, status=USAGE).stderr, *names)
        for strategy in (("fsdp",), ("zero", "--zero-stage", 1), ("zero", "--zero-stage", 3)):
            result = self.train("no", "--compress", "bf16", strategy=("--strategy", *strategy), status=USAGE)
            assert_names(result.stderr, "--compress bf16", "hybrid")
        self.assertFalse((self.folder / "no").exists())
        result = run(DTRAIN, *SMALL, "--compress", "bf16", "--steps", 1, "--run-dir", self.folder / "one")
        assert_names(result.stderr + result.stdout, "--compress bf16")
        self.assertNotIn("compression", json.loads((self.folder / "one" / "metrics.jsonl").read_text().splitlines()[0]))


if __name__ == "__main__":
    unittest.main()
