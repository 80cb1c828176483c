"""Being asked to stop where an evaluation would take long: saved at once, evaluated by the next start."""

import signal
import unittest

from messages import assert_names
from resume_test import ResumeTest
from train_test import wait_until


class StopDuringEvaluation(ResumeTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.long = cls.root / "long.txt"  # minutes of evaluation
        cls.long.write_bytes(cls.text.read_bytes() * 400)

    def stop_in_evaluation(self, *flags, ranks=1, event=None):
        process = self.start("--val-data", self.long, "--val-fraction", "0", "--eval-sequences", "all", "--eval-every", "2",
                             "--checkpoint-every", "100", *flags, ranks=ranks)
        if event is None:
            self.wait_for_step(2)  # its line is written when its evaluation begins
        else:
            wait_until(lambda: self.events(event), event)
        process.send_signal(signal.SIGTERM)
        error = self.end_of(process, 9)
        assert_names(error, "step 2", "SIGTERM", "saved")
        self.assertEqual(self.steps_saved(), [2])
        self.assertEqual(self.events("eval"), [])

    def test_the_step_is_saved_and_the_next_start_evaluates_it(self):
        self.stop_in_evaluation()
        flags = ("--val-data", self.long, "--val-fraction", "0", "--eval-every", "2", "--checkpoint-every", "100")
        self.single(*flags, "--resume", "auto", steps=5)
        whole = self.root / "whole"
        self.single(*flags, steps=5, run_dir=whole)
        self.assertEqual(self.events("eval"), self.events("eval", whole))
        self.assertEqual([line["step"] for line in self.events("eval")], [2, 4, 5])
        self.assert_same_run(self.run_dir, whole)

    def test_a_time_limit_shorter_than_an_evaluation_does_not_stop_every_start_in_it(self):
        limit = ("--eval-every", "2", "--time-limit", "0.001s")  # is over before a step is
        self.single(*limit, steps=4, status=9)
        for status in (9, 9, 9, 0):
            self.single(*limit, "--resume", "auto", steps=4, status=status)
        self.assertEqual([line["step"] for line in self.events("eval")], [2, 4])
        self.assertEqual(len(self.events("end")), 1)
        # A finished run has nothing that a limit could stop.
        self.single(*limit, "--resume", "auto", steps=4)
        self.assertFalse((self.run_dir / "REQUEUE").exists())

    def test_ranks_and_stages_leave_together(self):
        self.stop_in_evaluation(ranks=2)
        self.run_dir = self.root / "stages"
        self.stop_in_evaluation("--strategy", "mp", "--grad-accum", "2")

    def test_what_another_run_has_saved_is_saved_here_too(self):
        first = self.root / "first"
        self.single("--val-fraction", "0", steps=2, run_dir=first)
        self.stop_in_evaluation("--resume", first, event="resume")  # which is followed by the evaluation of its step
        self.single("--val-data", self.long, "--val-fraction", "0", "--resume", "auto", steps=3)
        whole = self.root / "whole-of-two"
        self.single("--val-fraction", "0", steps=3, run_dir=whole)
        self.assertEqual(self.losses(), self.losses(whole)[2:])

    def test_a_stop_before_an_evaluation_that_is_due_does_not_wait_for_it(self):
        self.run_dir.mkdir()
        (self.run_dir / "STOP").touch()
        process = self.start("--val-data", self.long, "--val-fraction", "0", "--eval-sequences", "all", steps=1)
        self.end_of(process, 9)
        self.assertEqual((self.steps_saved(), self.events("eval")), ([1], []))
        self.single("--val-data", self.long, "--val-fraction", "0", "--resume", "auto", steps=1)
        self.assertEqual([line["step"] for line in self.events("eval")], [1])
        self.assertTrue((self.run_dir / "final/model.safetensors").exists())


if __name__ == "__main__":
    unittest.main()
