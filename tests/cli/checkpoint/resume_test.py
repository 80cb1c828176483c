"""Stopping and resuming: signals, limits, restarts, damage, two jobs at once."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import unittest

from dtrain_harness import front_end_alone, launched, make_folder, paths_of, run
from messages import assert_names, error_line, lines_naming
from train_test import DTRAIN, DTRUN, LIMIT, TrainTest, wait_until

EVERY = ("--checkpoint-every", "4")
EVERY_STEP = ("--checkpoint-every", "1", "--keep-every", "1")  # waits for each save
ENDLESS = 1_000_000  # steps of a run that is stopped: no machine takes them all within a test


class ResumeTest(TrainTest):
    def start(self, *flags, ranks=1, run_dir=None, steps=ENDLESS, environment=None):
        strategy = ["--strategy", "ddp"] if ranks > 1 else []
        self.progress = self.root / "progress.txt"  # what it writes to standard output
        with self.progress.open("w") as progress:
            return self.launched(launched(ranks, *self.arguments(*strategy, *flags, run_dir=run_dir, steps=steps)), stdout=progress,
                                 env={**os.environ, **(environment or {})})

    def launched(self, command, **options):
        process = subprocess.Popen([str(word) for word in command], **{"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE,
                                                                       "stdin": subprocess.DEVNULL, "text": True, **options})
        self.addCleanup(lambda: (process.kill(), process.wait(), process.stderr and process.stderr.close()))
        return process

    def end_of(self, process, status, limit=LIMIT):
        error = process.communicate(timeout=limit)[1]
        self.assertEqual(process.returncode, status, error)
        return error

    def lines(self, run_dir=None):
        path = (run_dir or self.run_dir) / "metrics.jsonl"
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text().splitlines(True) if line.endswith("\n")]

    def losses(self, run_dir=None):
        return [(line["step"], line["loss"], line["grad_norm"], line["samples"], line["tokens"])
                for line in self.lines(run_dir) if "loss" in line]

    def events(self, name, run_dir=None):
        return [line for line in self.lines(run_dir) if line.get("event") == name]

    def steps_saved(self, run_dir=None):
        folder = (run_dir or self.run_dir) / "checkpoints"
        return sorted(int(path.name[5:]) for path in folder.iterdir()) if folder.exists() else []

    def wait_for_step(self, step):
        wait_until(lambda: any(line["step"] >= step for line in self.lines() if "loss" in line), f"step {step}")

    def assert_same_run(self, run_dir, other):
        self.assertEqual(self.losses(run_dir), self.losses(other))
        self.assertEqual((run_dir / "final/model.safetensors").read_bytes()[-4096:],
                         (other / "final/model.safetensors").read_bytes()[-4096:])
        result = self.run_command([DTRAIN, "checkpoint", "diff", run_dir, other])
        self.assertNotIn("differs", result.stdout)


class GoingOn(ResumeTest):
    def test_an_extended_run_has_the_bits_of_a_long_one(self):
        whole, other = self.root / "whole", self.root / "parts"
        self.single(*EVERY, steps=22, run_dir=whole)
        for steps in (6, 13, 22):  # 13: in the middle of what --checkpoint-every would save
            self.single(*EVERY, "--resume", "auto", steps=steps, run_dir=other)
        self.assert_same_run(other, whole)
        self.assertEqual([line["step"] for line in self.events("resume", other)], [6, 13])

    def test_a_run_over_an_epoch_resumes_where_it_stopped(self):
        whole, other = self.root / "whole-epochs", self.root / "epochs"
        small = self.root / "small.txt"
        small.write_bytes(self.text.read_bytes()[:4000])  # 124 samples
        flags = (*EVERY, "--data", small, "--val-fraction", "0")
        self.single(*flags, steps=70, run_dir=whole)
        for steps in (33, 70):
            self.single(*flags, "--resume", "auto", steps=steps, run_dir=other)
        self.assert_same_run(other, whole)

    def test_an_older_checkpoint_may_be_chosen_and_later_ones_are_quarantined(self):
        self.single(*EVERY_STEP, steps=6)
        before = self.losses()
        result = self.single(*EVERY_STEP, "--resume", self.run_dir / "checkpoints/step-2", steps=6)
        self.assertIn("step-6.superseded-", result.stderr)
        self.assertEqual(self.losses(), before)

    def test_old_checkpoints_are_removed_and_multiples_kept(self):
        flags = ("--keep-last", "2", "--keep-every", "6")
        self.single("--checkpoint-every", "3", *flags, steps=20)
        self.assertEqual(self.steps_saved(), [6, 12, 18, 20])
        self.single("--checkpoint-every", "7", *flags, "--resume", "auto", steps=22)
        self.assertEqual(self.steps_saved(), [6, 12, 18, 21, 22])


class Stopping(ResumeTest):
    def assert_stopped(self, error, reason):
        step = self.losses()[-1][0]
        self.assertEqual(self.steps_saved()[-1], step)
        assert_names(error, f"step {step}", reason)
        stop = self.events("stop")[-1]
        self.assertEqual((stop["step"], stop["reason"], pathlib.Path(stop["checkpoint"])),
                         (step, reason, self.run_dir / "checkpoints" / f"step-{step}"))
        self.assertTrue((self.run_dir / "REQUEUE").exists())
        self.assertFalse((self.run_dir / "final").exists())

    def assert_goes_on(self):
        whole = self.root / (self.run_dir.name + "-whole")
        steps = self.losses()[-1][0] + 3
        self.single("--resume", "auto", *EVERY, steps=steps)
        self.assertFalse((self.run_dir / "REQUEUE").exists())
        self.single(steps=steps, *EVERY, run_dir=whole)
        self.assert_same_run(self.run_dir, whole)

    def test_signals_save_and_stop_even_if_the_caller_blocks_them(self):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        self.addCleanup(signal.pthread_sigmask, signal.SIG_UNBLOCK, {signal.SIGTERM})
        for number, variables, status in ((signal.SIGTERM, {}, 9), (signal.SIGUSR1, {"SLURM_JOB_ID": "7"}, 0)):
            with self.subTest(signal=number.name):
                self.run_dir = self.root / ("stop-" + number.name)
                process = self.start(environment=variables)
                self.wait_for_step(2)
                process.send_signal(number)
                self.assert_stopped(self.end_of(process, status), number.name)
        self.assert_goes_on()

    def test_a_request_during_startup_waits_for_the_first_step(self):
        process = self.start()
        held = (1 << (signal.SIGUSR1 - 1)) | (1 << (signal.SIGUSR2 - 1))  # alone: Popen's fork blocks more

        def waits():
            lines = pathlib.Path(f"/proc/{process.pid}/status").read_text().splitlines()
            return int(next(line for line in lines if line.startswith("SigBlk")).split()[1], 16) == held
        wait_until(waits, "the program's first lines")
        process.send_signal(signal.SIGUSR2)
        process.send_signal(signal.SIGUSR1)
        self.assert_stopped(self.end_of(process, 9), "SIGUSR1")

    def test_ranks_below_a_shell_save_when_dtrun_is_stopped(self):
        process = self.launched([DTRUN, "-n", "2", "--", "bash", "-c", '"$0" "$@"; echo not reached >&2', DTRAIN, "--strategy", "ddp",
                                 *self.arguments(steps=ENDLESS)])
        self.wait_for_step(2)
        process.terminate()
        error = self.end_of(process, 9)
        self.assertNotIn("not reached", error)
        self.assert_stopped(error, "SIGTERM")

    def test_a_signal_to_one_rank_stops_all(self):
        process = self.start(ranks=2)
        self.wait_for_step(2)
        children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        ranks = [pid for child in children
                 for pid in pathlib.Path(f"/proc/{child}/task/{child}/children").read_text().split()]
        self.assertEqual(len(ranks), 2)
        os.kill(int(ranks[1]), signal.SIGUSR1)
        self.assert_stopped(self.end_of(process, 9), "another rank")

    def test_a_stop_file_is_obeyed_and_removed(self):
        process = self.start(ranks=2)
        self.wait_for_step(2)
        (self.run_dir / "STOP").touch()
        self.assert_stopped(self.end_of(process, 9), f"the file {self.run_dir / 'STOP'}")
        self.assertFalse((self.run_dir / "STOP").exists())

    def test_a_time_limit_is_honored(self):
        self.assert_stopped(self.end_of(self.start("--time-limit", "0.5s"), 9), "--time-limit")

    def test_sigusr2_saves_and_continues(self):
        process = self.start(*("--checkpoint-every", "0"))
        self.wait_for_step(2)
        process.send_signal(signal.SIGUSR2)
        wait_until(lambda: self.events("checkpoint"), "a checkpoint")
        self.wait_for_step(self.events("checkpoint")[0]["step"] + 2)
        self.assertIsNone(process.poll())
        process.terminate()
        self.end_of(process, 9)

    def test_a_failure_names_the_latest_checkpoint_and_how_to_continue(self):
        self.single(*EVERY, steps=4)
        bad = (*EVERY, "--resume", "auto", "--lr", "1e30", "--grad-clip", "0")
        newest = f"{self.run_dir}/checkpoints/step-4"
        lines = self.single(*bad, steps=20, status=7).stderr.splitlines()
        assert_names(lines[-2], "dtrain", newest, "--resume auto")
        self.assertIn("dtrain: error: ", lines[-1])
        self.assertEqual(1, len(lines_naming(self.ddp(*bad, steps=20, status=7).stderr, "dtrun", newest, "--resume auto")))

    def test_checkpoints_by_time(self):
        process = self.start("--checkpoint-every", "0.2s", ranks=2)
        wait_until(lambda: len(self.events("checkpoint")) >= 3, "three checkpoints")
        process.terminate()
        self.end_of(process, 9)


class Refusals(ResumeTest):
    def test_another_model_is_refused_by_name_and_moved_data_are_not(self):
        """Other settings: documents_resume_test.py."""
        self.single(*EVERY)
        before = sorted(str(path) for path in self.run_dir.rglob("*"))
        for flags, name in ((("--layers", "3"), "model.layers"), (("--dropout", "0.2"), "model.dropout")):
            error_line(self.single(*EVERY, "--resume", "auto", *flags, status=2).stderr, name)
        self.assertEqual(sorted(str(path) for path in self.run_dir.rglob("*")), before)
        moved = self.root / "moved.txt"
        shutil.copy(self.text, moved)
        self.single(*EVERY, "--resume", "auto", "--data", moved, steps=6)

    def test_settings_without_effect_are_reported(self):
        program = front_end_alone(make_folder(self))
        for flags, *told in ((("--strict-resume", "--keep-every", "5", "--checkpoint-write-limit", "9", "--checkpoint-every", "0"),
                              ("--strict-resume",), ("--keep-every 5",), ("--checkpoint-write-limit 9",)),
                             (("--optimizer", "sgd", "--beta1", "0.8", "--eps", "1e-4"), ("--beta1", "--optimizer sgd"),
                              ("--eps", "--optimizer sgd")),
                             (("--momentum", "0.5"), ("--momentum", "--optimizer adamw")),
                             (("--val-fraction", "0.6"), ("--val-fraction 0.6", "--data"))):
            error = run(program, *self.arguments(*flags), status=42).stderr
            for names in told:
                assert_names(error, "warning", *names)

    def test_fewer_steps_than_the_run_has_taken_are_refused(self):
        def files():
            return {path: path.read_bytes() for path in self.run_dir.rglob("*") if path.is_file() and path.name != "lock"}

        self.single(*EVERY, steps=6)
        before = files()
        self.assertIn("step 6, beyond --steps 5", self.ddp(*EVERY, "--resume", "auto", steps=5, status=2).stderr)
        fork = self.root / "short-fork"
        self.run_command([DTRAIN, "--resume", self.run_dir, "--run-dir", fork, "--steps", "5"], status=2)
        self.assertFalse(fork.exists())
        self.assertEqual(before, files())

    def test_bad_values_are_reported_at_once(self):
        for flags, name in [(("--checkpoint-every", "soon"), "--checkpoint-every"), (("--keep-last", "1"), "--keep-last"),
                            (("--time-limit", "1 fortnight"), "--time-limit"),
                            (("--resume", "auto", "--overwrite"), "--overwrite"), (("--resume", ""), "--resume")]:
            self.assertIn(name, self.single(*flags, status=2).stderr)
        self.assertFalse((self.run_dir / "config.json").exists())

    def test_damage_is_reported_and_skipped_unless_strict(self):
        self.ddp(*EVERY, steps=8)
        whole = self.losses()
        path = self.run_dir / "checkpoints/step-8/optimizer-00002-of-00002.safetensors"
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        result = self.ddp(*EVERY, "--resume", "auto", "--strict-resume", steps=8, status=6)
        self.assertIn(str(path), result.stderr)
        result = self.ddp(*EVERY, "--resume", "auto", steps=8)
        self.assertIn(str(path), result.stderr)
        self.assertIn("resumed from " + str(self.run_dir / "checkpoints/step-4"), result.stderr)
        self.assertEqual(self.losses(), whole)

    def test_a_run_without_an_intact_checkpoint_is_not_restarted(self):
        self.single(*EVERY)
        for path in (self.run_dir / "checkpoints").glob("*/manifest.json"):
            path.write_bytes(path.read_bytes()[:-1])
        before = self.losses()
        self.assertIn("manifest.json", self.single(*EVERY, "--resume", "auto", status=6).stderr)
        self.assertEqual(self.losses(), before)

    def test_a_finished_run_without_checkpoints_is_not_restarted(self):
        self.single("--checkpoint-every", "none")
        self.assertEqual(self.steps_saved(), [])
        before = self.losses()
        self.assertIn("--resume auto", self.single("--resume", "auto", status=2).stderr)
        self.assertEqual(self.losses(), before)

    def test_a_second_job_is_refused_with_host_and_process(self):
        process = self.start("--resume", "auto")
        self.wait_for_step(1)
        # The refusal takes 5 s: longer than ranks wait for each other.
        result = self.ddp("--resume", "auto", "--comm-timeout", "4", status=2)
        assert_names(result.stderr, f"process {process.pid}", os.uname().nodename)
        self.assertIsNone(process.poll())


class Foreign(ResumeTest):
    def test_a_checkpoint_under_the_name_of_another_step_is_skipped(self):
        self.single(*EVERY, steps=8)
        shutil.copytree(self.run_dir / "checkpoints/step-4", self.run_dir / "checkpoints/step-90")
        result = self.single(*EVERY, "--resume", "auto", steps=9)
        assert_names(result.stderr, "step 4", "older")
        self.assertIn("resumed from " + str(self.run_dir / "checkpoints/step-8"), result.stderr)

    def init_from_two_places(self, path, status):
        """Starts rank 0 in the folder r0 and rank 1 in r1, where `path` means different things."""
        return self.wrapped(f'cd "{self.root}/r$RANK" && exec "$@"\n', "--init-from", path, run_dir=self.root / "new", status=status)

    def test_ranks_that_see_other_checkpoints_or_files_never_begin_with_other_weights(self):
        self.single(*EVERY, steps=8)
        for folder in ("r0", "r1"):
            shutil.copytree(self.run_dir, self.root / folder / "run")
        shutil.rmtree(self.root / "r0/run/checkpoints/step-8")  # comes as soon as rank 0 has looked
        expected = self.root / "expected"
        self.ddp("--init-from", self.run_dir / "checkpoints/step-4", run_dir=expected)
        self.init_from_two_places("run", 0)
        self.assertEqual(self.losses(self.root / "new"), self.losses(expected))
        shutil.rmtree(self.root / "new")
        shutil.copy(expected / "final/model.safetensors", self.root / "r1/run/final")
        result = self.init_from_two_places("run/final/model.safetensors", 2)
        assert_names(result.stderr, "ranks 0 and 1", "norm")


class SlowAndFull(ResumeTest):
    def test_training_continues_during_writes_to_a_slow_disk(self):
        # A rank's 0.17 MB take 3 s, in which training waits 1 s for it and then makes tens of steps.
        process = self.start("--checkpoint-every", "3", "--checkpoint-write-limit", "0.06", ranks=2)
        wait_until(lambda: len(self.events("checkpoint")) >= 2, "two checkpoints")
        lines = self.lines()
        first = self.events("checkpoint")[0]
        done = lines.index(first)
        self.assertGreaterEqual(len([line for line in lines[:done] if "loss" in line]), first["step"] + 5)
        self.assertGreater(self.events("checkpoint")[1]["step"], 6)  # it had to wait for the first
        process.terminate()
        self.end_of(process, 9)
        self.run_command([DTRAIN, "checkpoint", "verify", self.run_dir])

    def test_the_write_limit_is_lifted_when_a_run_stops(self):
        # At this limit a save takes three minutes.
        process = self.start("--checkpoint-every", "1", "--checkpoint-write-limit", "0.002")
        wait_until(lambda: paths_of(self.run_dir, "checkpoints/step-*"), "a save")
        process.terminate()
        self.end_of(process, 9)
        self.assertEqual(self.steps_saved()[-1], self.losses()[-1][0])


class StopDuringEvaluation(ResumeTest):
    """Asked to stop where an evaluation would take long: saved at once, evaluated by the next start."""

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
