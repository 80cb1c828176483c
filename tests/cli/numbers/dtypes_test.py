"""Every dtype trains, generates text and matches the reference, with all and with few CPU instructions."""

import concurrent.futures
import json
import struct
import unittest

import dtrain_harness
from dtrain_harness import CONSTANT_RATE, DTRAIN, FolderTest, GOLDEN, final_model, metrics_of, overriding

DTYPES = ("float32", "float64", "bfloat16", "float16")
LOW = ("bfloat16", "float16")
# oneDNN products and ATen loops as on a CPU without AVX-512, and as on a baseline CPU.
ALL_INSTRUCTIONS = {}
AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
LOWEST = {"ONEDNN_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default"}
TINY = (*CONSTANT_RATE, "--layers", 2, "--width", 32, "--heads", 2, "--neurons", 64, "--seq-len", 32, "--global-batch", 4, "--lr", 1e-2,
        "--val-fraction", 0.02, "--threads", 1, "--data", GOLDEN / "text.bin")


def run(*command, **options):
    result = dtrain_harness.run(*command, **options)
    for trace in ("INTERNAL ASSERT", "mkldnn_matmul failed"):
        assert trace not in result.stderr, result.stderr
    return result


class Dtypes(FolderTest):
    def train(self, name, *flags, environment=None, launcher=()):
        run(*launcher, DTRAIN, *overriding(TINY, *flags), "--run-dir", self.folder / name, environment=environment)
        return metrics_of(self.folder / name)

    def model(self, name):
        return final_model(self.folder / name)

    def verify(self, *flags, environment=None, fixture=GOLDEN / "three_heads.safetensors", status=0):
        result = run(DTRAIN, "verify", "--golden", fixture, "--threads", 1, *flags, environment=environment, status=status)
        return json.loads(result.stdout)["checks"]

    def train_generate_and_verify(self, dtype, instructions, environment):
        name = f"{dtype}-{instructions}"
        lines = self.train(name, "--dtype", dtype, "--steps", 8, environment=environment)
        text = run(DTRAIN, "generate", "--from", self.model(name), "--prompt", "In the ", "--max-tokens", 8, "--dtype", dtype,
                   "--threads", 1, environment=environment)
        self.verify("--dtype", dtype, environment=environment)
        return lines, text

    def test_each_dtype_trains_evaluates_generates_and_verifies(self):
        cases = [(dtype, *instructions) for dtype in DTYPES
                 for instructions in (("all", ALL_INSTRUCTIONS), ("lowest", LOWEST))]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            results = [(case, pool.submit(self.train_generate_and_verify, *case)) for case in cases]
        for (dtype, instructions, _), result in results:
            with self.subTest(dtype=dtype, instructions=instructions):
                lines, text = result.result()
                losses = [line["loss"] for line in lines if "loss" in line]
                self.assertLess(losses[-1], losses[0] - 0.2)
                self.assertLess(lines[-1]["val_loss"], losses[0] - 0.2)
                self.assertTrue(text.stdout.startswith("In the "))
                self.assertEqual(text.stderr.count("\n"), 1, text.stderr)  # the memory

    def test_the_first_steps_of_the_reference_trajectory_are_followed_in_16_bits(self):
        trajectory = json.loads((GOLDEN / "trajectory.json").read_text())
        trajectory["offsets"] = trajectory["offsets"][:3]
        (self.folder / "trajectory.json").write_text(json.dumps(trajectory))
        (self.folder / "text.bin").symlink_to(GOLDEN / "text.bin")
        for dtype in LOW:
            # Three steps do not reach the values expected after all 50.
            checks = self.verify("--dtype", dtype, "--trajectory", self.folder / "trajectory.json", "--name", "three_heads",
                                 status=7)
            for name in ("trajectory.loss_first_5_steps", "trajectory.loss", "trajectory.grad_norm"):
                self.assertTrue(checks[name]["passed"], checks[name])
                self.assertGreater(checks[name]["error"], 0)

    def test_gradients_of_half_the_size_are_detected_in_16_bits(self):
        fixture = self.folder / "three_heads.safetensors"
        content = bytearray((GOLDEN / "three_heads.safetensors").read_bytes())
        (length,) = struct.unpack_from("<Q", content)
        for name, dtype in (("grad.encoder", "float16"), ("grad.lm_head", "bfloat16")):
            begin, end = (8 + length + offset for offset in json.loads(content[8:8 + length])[name]["data_offsets"])
            values = struct.unpack_from(f"<{(end - begin) // 4}f", content, begin)
            changed = bytearray(content)
            struct.pack_into(f"<{len(values)}f", changed, begin, *(2 * value for value in values))
            fixture.write_bytes(changed)
            checks = self.verify("--dtype", dtype, fixture=fixture, status=7)
            self.assertEqual([key for key, check in checks.items() if not check["passed"]], [name])

    def test_initial_weights_and_frequencies_have_the_same_bits_with_any_instructions(self):
        models = []
        for name, environment in (("all", ALL_INSTRUCTIONS), ("avx2", AVX2), ("lowest", LOWEST)):
            self.train(name, "--steps", 1, "--lr", 0, environment=environment)
            models.append(self.model(name).read_bytes())
        self.assertEqual(models[1], models[0])
        self.assertEqual(models[2], models[0])

    def test_a_stopped_float16_run_has_the_scales_and_bits_of_an_uninterrupted_one(self):
        # Eight bytes repeated, longer than the run, since each epoch cuts the text elsewhere: gradients overflow in the first three steps, until the scale fits.
        # The scale is raised again after 2,000 good steps, and is then too large once more.
        text = self.folder / "text.txt"
        text.write_bytes(b"abcdefgh" * 3000)
        flags = ("--layers", 1, "--width", 8, "--heads", 1, "--neurons", 8, "--seq-len", 8, "--global-batch", 1, "--lr", 1e-6,
                 "--val-fraction", 0, "--data", text, "--dtype", "float16", "--checkpoint-every", 100_000)
        first = run(DTRAIN, *overriding(TINY, *flags), "--steps", 1, "--run-dir", self.folder / "first")
        self.assertIn(" | grad overflow | ", first.stdout)
        whole = self.train("whole", *flags, "--steps", 2010)
        for steps in (2, 900, 2010):
            parts = self.train("parts", *flags, "--steps", steps, "--resume", "auto")
        keys = ("step", "loss", "grad_norm", "loss_scale", "skipped_steps")
        whole, parts = ([[line[key] for key in keys] for line in lines if "loss" in line] for lines in (whole, parts))
        self.assertEqual(parts, whole)
        scales = [line[3] for line in whole]
        changes = [step for step in range(1, len(scales)) if scales[step] != scales[step - 1]]
        self.assertIn(2 * scales[changes[-2] - 1], scales[changes[-2]:], "the scale has not grown")
        self.assertGreater(changes[-2], 2000)
        self.assertEqual(self.model("parts").read_bytes(), self.model("whole").read_bytes())
        run(DTRAIN, "checkpoint", "diff", self.folder / "parts", self.folder / "whole")


if __name__ == "__main__":
    unittest.main()
