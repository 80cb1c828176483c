"""Every experiment of configs/ trains for a few steps; the big ones with shrunken sizes."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

BUILD = pathlib.Path(os.environ["DTRAIN_BINARY_DIR"])
SOURCE = pathlib.Path(os.environ["DTRAIN_SOURCE_DIR"])
STEPS = 3
SHRUNKEN = ["--set", "model.width=32", "--set", "model.neurons=64", "--set", "data.seq_len=32"]


class Experiments(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="dtrain-experiments-")
        self.addCleanup(folder.cleanup)
        self.run_dir = pathlib.Path(folder.name) / "run"

    def train(self, name, *flags, ranks=0):
        launcher = [BUILD / "bin" / "dtrun", "-n", str(ranks), "--"] if ranks else []
        command = [*launcher, BUILD / "bin" / "dtrain", "--config", SOURCE / f"configs/experiments/{name}.json",
                   "--data", SOURCE / "tests/golden/text.bin", "--run-dir", self.run_dir, "--steps", str(STEPS),
                   "--warmup-steps", "1", "--val-fraction", "0.2", "--eval-sequences", "9", "--log-every", "1", *flags]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = [json.loads(line) for line in (self.run_dir / "metrics.jsonl").read_text().splitlines()]
        self.check_losses([line["loss"] for line in lines if "event" not in line])
        return json.loads((self.run_dir / "config.json").read_text())

    def check_losses(self, losses):
        self.assertEqual(len(losses), STEPS)
        for loss in losses:  # ln 256 = 5.545, and no step of these moves far from it
            self.assertGreater(loss, 4)
            self.assertLess(loss, 7)
        self.assertLess(losses[-1], losses[0])

    def test_mini(self):
        config = self.train("mini")
        self.assertEqual(config["train"]["lr"], 3e-3)
        self.assertTrue((self.run_dir / "final" / "model.safetensors").is_file())

    def test_small(self):
        self.train("small", "--global-batch", "2")

    def test_25m(self):
        config = self.train("25m", *SHRUNKEN)
        self.assertEqual(config["resolved"]["batch"], {"global": 32, "microbatch": 1, "grad_accum": 32})

    def test_prod(self):
        config = self.train("prod", *SHRUNKEN, ranks=2)
        resolved = config["resolved"]
        self.assertEqual((resolved["layout"]["strategy"], resolved["batch"]["microbatch"]), ("fsdp", 1))


if __name__ == "__main__":
    unittest.main()
