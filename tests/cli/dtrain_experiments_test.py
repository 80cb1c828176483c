"""Every experiment of configs/ trains for a few steps; the big ones with shrunken sizes."""

import json
import unittest

from dtrain_harness import GOLDEN, SOURCE, FolderTest, final_model, launched, metrics_of, run

STEPS = 3
SHRUNKEN = ["--set", "model.width=32", "--set", "model.neurons=64", "--set", "data.seq_len=32"]


class Experiments(FolderTest):
    def train(self, name, *flags, ranks=1):
        run_dir = self.folder / "run"
        run(*launched(ranks, "--config", SOURCE / f"configs/experiments/{name}.json", "--data", GOLDEN / "text.bin",
                      "--run-dir", run_dir, "--steps", STEPS, "--warmup-steps", "1", "--val-fraction", "0.2",
                      "--eval-sequences", "9", "--log-every", "1", "--threads", "1", *flags))
        self.check_losses([line["loss"] for line in metrics_of(run_dir) if "event" not in line])
        return json.loads((run_dir / "config.json").read_text())

    def check_losses(self, losses):
        self.assertEqual(len(losses), STEPS)
        for loss in losses:  # ln 256 = 5.545, and no step of these moves far from it
            self.assertGreater(loss, 4)
            self.assertLess(loss, 7)
        self.assertLess(losses[-1], losses[0])

    def test_mini(self):
        config = self.train("mini")
        self.assertEqual(config["train"]["lr"], 3e-3)
        self.assertTrue(final_model(self.folder / "run").is_file())

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
