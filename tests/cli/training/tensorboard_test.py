"""Event files, read by the real tensorboard package: the figures of metrics.jsonl, each step once, even in resumed runs."""

import json
import math
import shutil
import struct
import unittest

from dtrain_harness import CONSTANT_RATE, FolderTest, GOLDEN, PYTHON, USAGE, launched, metrics_of, run
from messages import assert_names

# What TensorBoard itself would show: curves by tag, as [step, value], and texts by tag.
READ = """
import json, sys
from tensorboard.backend.event_processing import event_accumulator
folder = event_accumulator.EventAccumulator(sys.argv[1], size_guidance={event_accumulator.SCALARS: 0, event_accumulator.TENSORS: 0})
folder.Reload()
tags = folder.Tags()
curves = {tag: [[event.step, event.value] for event in folder.Scalars(tag)] for tag in tags["scalars"]}
texts = {tag: [[event.step, event.tensor_proto.string_val[0].decode()] for event in folder.Tensors(tag)] for tag in tags["tensors"]}
print(json.dumps({"curves": curves, "texts": texts}))
"""
SMALL = [*CONSTANT_RATE, "--layers", "2", "--width", "16", "--heads", "2", "--neurons", "16", "--seq-len", "16", "--threads", "1", "--log-every", "0",
         "--data", GOLDEN / "text.bin", "--val-fraction", "0.1", "--eval-every", "2", "--eval-sequences", "4"]
CURVES = {"train/loss": "loss", "train/grad_norm": "grad_norm", "train/learning_rate": "learning_rate",
          "speed/tokens_per_second": "tokens_per_second", "speed/step_seconds": "step_seconds", "speed/wait_seconds": "wait_seconds",
          "speed/mfu": "mfu", "machine/memory_bytes": "memory_bytes", "machine/comm_bytes": "comm_bytes"}


def as_float32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


class TensorBoard(FolderTest):
    def setUp(self):
        super().setUp()
        self.run_dir = self.folder / "run"
        self.events = self.run_dir / "tensorboard"

    def train(self, *flags, ranks=1, **options):
        return run(*launched(ranks, *SMALL, "--run-dir", self.run_dir, *flags), **options)

    def read(self):
        return json.loads(run(PYTHON, "-c", READ, self.events).stdout)

    def check_equal_to_metrics(self):
        found, lines = self.read()["curves"], metrics_of(self.run_dir)
        expected = {tag: [[line["step"], as_float32(line[key])] for line in lines if "event" not in line]
                    for tag, key in CURVES.items()}
        evaluations = [line for line in lines if line.get("event") == "eval"]
        expected |= {f"validation/{tag}": [[line["step"], as_float32(line[key])] for line in evaluations]
                     for tag, key in (("loss", "val_loss"), ("bits_per_byte", "bits_per_byte")) if evaluations}
        self.assertEqual(found, expected)

    def test_curves_and_texts_are_those_of_the_run(self):
        self.train("--steps", "5", "--strategy", "ddp", ranks=2)
        self.check_equal_to_metrics()
        ((step, text),) = self.read()["texts"]["start"]
        self.assertEqual(step, 0)
        self.assertIn("strategy=ddp", text)

    def test_a_resumed_run_has_each_step_once(self):
        self.train("--steps", "5", "--checkpoint-every", "3")
        self.train("--steps", "7", "--resume", "auto")
        self.check_equal_to_metrics()
        # The checkpoint of the last step is lost: steps after 3 are made, and shown, anew.
        shutil.rmtree(self.run_dir / "checkpoints" / "step-7")
        shutil.rmtree(self.run_dir / "checkpoints" / "step-5")
        self.train("--steps", "9", "--resume", "auto", "--seed", "1")
        self.assertEqual(len(list(self.events.iterdir())), 3, "a file of each start")
        self.check_equal_to_metrics()
        self.assertEqual([step for step, _ in self.read()["curves"]["train/loss"]], list(range(1, 10)))

    def test_a_truncated_record_does_not_affect_others(self):
        self.train("--steps", "4", "--checkpoint-every", "2")
        (file,) = self.events.iterdir()
        file.write_bytes(file.read_bytes()[:-9])
        self.train("--steps", "6", "--resume", "auto")
        steps = [step for step, _ in self.read()["curves"]["train/loss"]]
        self.assertEqual(steps, list(range(1, 7)))

    def test_overwriting_removes_what_dtrain_wrote_and_nothing_else(self):
        self.train("--steps", "4")
        foreign = self.events / "events.out.tfevents.1.other"
        foreign.write_bytes(b"")
        self.train("--steps", "2", "--overwrite")
        self.assertTrue(foreign.exists())
        self.assertEqual(len(list(self.events.iterdir())), 2)
        self.check_equal_to_metrics()

    def test_off_writes_nothing(self):
        self.train("--steps", "1", "--tensorboard", "off")
        self.assertFalse(self.events.exists())

    def test_a_loss_that_is_not_finite_is_shown_as_such(self):
        self.train("--steps", "3", "--lr", "1e30", "--grad-clip", "0", "--on-nonfinite", "skip", status=None)
        losses = [value for _, value in self.read()["curves"]["train/loss"]]
        self.assertTrue(any(not math.isfinite(value) for value in losses), losses)
        self.assertIn("warnings", self.read()["texts"])

    def test_a_file_in_its_place_is_refused_by_name(self):
        self.run_dir.mkdir()
        self.events.write_text("mine")
        result = self.train("--steps", "1", status=USAGE)
        assert_names(result.stderr, f"'{self.events}'")
        self.assertEqual(self.events.read_text(), "mine")


if __name__ == "__main__":
    unittest.main()
