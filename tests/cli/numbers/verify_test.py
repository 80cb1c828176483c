"""dtrain verify: one JSON object, an exit status, and detection of planted errors."""

import json
import pathlib
import shutil
import struct
import unittest

from dtrain_harness import GOLDEN, FolderTest, launched, run
from messages import assert_names

GRADIENTS = ["decoder", "encoder", "encoder_v", "lm_head", "embed.weight"]


def plant(path, tensor, relative):
    """Adds `relative` of the largest element to one element of a float32 tensor in a safetensors file."""
    content = bytearray(path.read_bytes())
    (length,) = struct.unpack_from("<Q", content)
    begin, end = json.loads(content[8:8 + length])[tensor]["data_offsets"]
    count = (end - begin) // 4
    values = struct.unpack_from(f"<{count}f", content, 8 + length + begin)
    place = count // 2
    struct.pack_into("<f", content, 8 + length + begin + 4 * place,
                     values[place] + relative * max(abs(value) for value in values))
    path.write_bytes(content)


class Verify(FolderTest):
    def verify(self, fixture, *flags, ranks=1, status=None):
        result = run(*launched(ranks, "verify", "--golden", fixture, *flags), status=status)
        self.assertLessEqual(result.stdout.count("\n"), 1)
        self.answer = json.loads(result.stdout) if result.stdout else None
        return result

    def copy(self, name):
        shutil.copy(GOLDEN / "meta.json", self.folder)
        return pathlib.Path(shutil.copy(GOLDEN / f"{name}.safetensors", self.folder))

    def failed(self):
        return [name for name, check in self.answer["checks"].items() if not check["passed"]]

    def test_one_process_agrees_with_the_reference(self):
        for dtype, threads in (("float32", "1"), ("float64", "2")):
            self.verify(GOLDEN / "mini.safetensors", "--dtype", dtype, "--threads", threads, status=0)
            self.assertTrue(self.answer["passed"])
            self.assertEqual((self.answer["dtype"], self.answer["threads"]), (dtype, int(threads)))
            self.assertLessEqual({"loss", "logits", "act.layer3.out"} | {"grad." + name for name in GRADIENTS},
                                 self.answer["checks"].keys())
            for check in self.answer["checks"].values():
                self.assertLessEqual(check["error"], check["tolerance"])
                self.assertLess(check["tolerance"], 1e-5)

    def test_fifty_steps_follow_the_references_trajectory(self):
        """In float64 on two ranks: tests/golden/verifier_test.cpp."""
        self.verify(GOLDEN / "three_heads.safetensors", "--trajectory", GOLDEN / "trajectory.json", "--name",
                    "three_heads", "--threads", "1", status=0)
        self.assertTrue(self.answer["passed"])
        self.assertEqual(len(self.answer["checks"]), 14 + 4 + 5)
        self.assertLess(self.answer["checks"]["trajectory.loss"]["error"], 5e-4)

    def test_an_error_of_1e_4_in_any_gradient_is_detected(self):
        """Each tensor alone: tests/golden/verifier_test.cpp."""
        fixture = self.copy("three_heads")
        planted = []
        for names in (GRADIENTS[:1], GRADIENTS[1:]):
            for name in names:
                plant(fixture, "grad." + name, 1e-4)
            planted += names
            result = self.verify(fixture, "--threads", "1", status=7)
            self.assertEqual(sorted(self.failed()), sorted("grad." + name for name in planted))
            self.assertFalse(self.answer["passed"])
            self.assertEqual(result.stderr.count("\n"), 1)
            self.assertRegex(result.stderr, f"grad.({'|'.join(planted)}) differs by")

    def test_an_error_seen_by_one_rank_fails_the_job(self):
        fixture = self.copy("three_heads")
        plant(fixture, "grad.encoder", 1e-4)
        self.verify(fixture, "--strategy", "ddp", "--threads", "1", ranks=2, status=7)

    def test_accumulation_agrees_and_an_indivisible_batch_is_rejected(self):
        fixture = GOLDEN / "three_heads.safetensors"
        self.assertEqual(self.verify(fixture, "--grad-accum", "2").returncode, 0)
        self.assertTrue(self.answer["passed"])
        result = self.verify(fixture, "--grad-accum", "3", status=2)
        assert_names(result.stderr, "2 rows", "1 ranks", "--grad-accum 3")

    def test_a_token_outside_the_vocabulary_is_rejected_in_one_line(self):
        fixture = self.copy("mini")
        content = bytearray(fixture.read_bytes())
        (length,) = struct.unpack_from("<Q", content)
        begin, _ = json.loads(content[8:8 + length])["inputs"]["data_offsets"]
        struct.pack_into("<q", content, 8 + length + begin, 300)
        fixture.write_bytes(content)
        result = self.verify(fixture, status=6)
        self.assertEqual(result.stderr.count("\n"), 1)
        self.assertIn("'inputs' holds token 300 at row 0, position 0", result.stderr)

    def test_a_trajectory_with_a_shorter_text_is_rejected(self):
        size = 30000
        trajectory = pathlib.Path(shutil.copy(GOLDEN / "trajectory.json", self.folder))
        outside = next(offset for offset in json.loads(trajectory.read_text())["offsets"][0] if offset > size)
        text = self.write("text.bin", (GOLDEN / "text.bin").read_bytes()[:size])
        result = self.verify(GOLDEN / "three_heads.safetensors", "--trajectory", trajectory, "--name", "three_heads", status=3)
        assert_names(result.stderr, trajectory, outside, size, text)

    def test_an_invalid_fixture_is_rejected_in_one_line(self):
        for path, status in ((self.folder / "missing.safetensors", 6), (GOLDEN / "text.bin", 6)):
            result = self.verify(path, status=status)
            self.assertEqual(result.stderr.count("\n"), 1)
            self.assertIn(path.name, result.stderr)


if __name__ == "__main__":
    unittest.main()
