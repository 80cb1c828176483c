"""The front end hands requests to libdtrain.so and leaves the run folder alone: seen by a stand-in library."""

import json
import os
import struct
import unittest

from dtrain_harness import SOURCE, front_end_alone, make_folder, run
from messages import assert_names


class FrontEnd(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = make_folder(cls)
        cls.program = front_end_alone(cls.root)
        cls.text = cls.root / "text.txt"
        cls.text.write_text("And the evening and the morning were the first day.\n" * 40)

    def setUp(self):
        self.run_dir = self.root / self.id().rsplit(".", 1)[-1]

    def train(self, *arguments, variables=None):
        environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
        return run(self.program, "--data", self.text, "--seq-len", "16", "--run-dir", self.run_dir, *arguments, status=None,
                   env={**environment, **(variables or {})})

    def test_the_resolved_configuration_arrives_and_the_status_comes_back(self):
        result = self.train("--config", SOURCE / "configs/experiments/mini.json", "--threads", "2", "--checkpoint-every", "0")
        self.assertEqual((result.returncode, result.stderr), (42, ""))
        request = json.loads(result.stdout)
        self.assertEqual(request["command"], "train")
        config = request["config"]
        self.assertEqual(config["batch"], {"global": 8, "microbatch": 1, "grad_accum": 8})
        self.assertEqual((config["machine"]["threads"], config["machine"]["backend"]), (2, "none"))
        self.assertEqual(config["train"]["lr"], 3e-3)
        self.assertFalse(self.run_dir.exists(), "claimed too early")

    def test_nothing_is_removed_before_the_job_stands(self):
        (self.run_dir / "final").mkdir(parents=True)
        header = b'{"__metadata__": {"dtrain.model": "{}"}}'
        old = {"config.json": b'{"model": {"levels": 1}, "train": {"steps": 1}, "layout": {"strategy": ""}, "run": {"dir": ""}}',
               "metrics.jsonl": b'{"event":"start","parameters":1}\n',
               "final/model.safetensors": struct.pack("<Q", len(header)) + header}
        for name, content in old.items():
            (self.run_dir / name).write_bytes(content)
        self.assertEqual(self.train().returncode, 2)
        self.assertEqual(self.train("--overwrite").returncode, 42)
        for name, content in old.items():
            self.assertEqual((self.run_dir / name).read_bytes(), content)

    def test_any_trace_of_a_run_protects_the_folder(self):
        for name in ("metrics.jsonl", "final/model.safetensors"):
            file = self.run_dir / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("old")
            result = self.train()
            self.assertEqual(result.returncode, 2)
            self.assertIn(name, result.stderr)
            file.unlink()
        self.assertEqual(self.train().returncode, 42)

    def test_other_ranks_do_not_touch_the_folder(self):
        self.run_dir.mkdir()
        (self.run_dir / "config.json").write_text("rank 0 wrote this a moment ago")
        ranks = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
        result = self.train("--strategy", "ddp", variables=ranks)
        self.assertEqual((result.returncode, result.stderr), (42, ""))
        self.assertTrue((self.run_dir / "config.json").exists())

    def test_evaluation_without_validation_data_warns(self):
        result = self.train("--eval-every", "5")
        self.assertEqual(result.returncode, 42)
        assert_names(result.stderr, "warning", "--eval-every 5")


if __name__ == "__main__":
    unittest.main()
