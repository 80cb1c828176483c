"""Stopping and going on as a user meets it: signals, limits, restarts, damage, two jobs at once."""

import errno
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess

from messages import assert_names, holds, lines_naming
from train_test import DTRAIN, DTRUN, LIMIT, TrainTest, wait_until

EVERY = ("--checkpoint-every", "4")
EVERY_STEP = ("--checkpoint-every", "1", "--keep-every", "1")  # waits for each save
ENDLESS = 1_000_000  # steps of a run that is stopped: no machine takes them all within a test


class ResumeTest(TrainTest):
    def start(self, *flags, ranks=1, run_dir=None, steps=ENDLESS, environment=None):
        launcher = [DTRUN, "-n", str(ranks), "--"] if ranks > 1 else []
        strategy = ["--strategy", "ddp"] if ranks > 1 else []
        self.progress = self.root / "progress.txt"  # what it writes to standard output
        with self.progress.open("w") as progress:
            process = subprocess.Popen([*launcher, DTRAIN, *map(str, self.arguments(*strategy, *flags, run_dir=run_dir,
                                                                                     steps=steps))],
                                       stdout=progress, stderr=subprocess.PIPE, text=True,
                                       env={**os.environ, **(environment or {})})
        self.addCleanup(lambda: (process.kill(), process.wait(), process.stderr.close()))
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
    def test_a_run_that_is_extended_has_the_bits_of_a_long_one(self):
        whole, other = self.root / "whole", self.root / "parts"
        self.single(*EVERY, steps=22, run_dir=whole)
        for steps in (6, 13, 22):  # 13: in the middle of what --checkpoint-every would save
            self.single(*EVERY, "--resume", "auto", steps=steps, run_dir=other)
        self.assert_same_run(other, whole)
        self.assertEqual([line["step"] for line in self.events("resume", other)], [6, 13])

    def test_the_layout_may_change_at_every_restart(self):
        whole, other = self.root / "whole-layouts", self.root / "layouts"
        accumulate = ("--grad-accum", "4")
        self.single(*EVERY, *accumulate, steps=12, run_dir=whole)
        self.ddp(*EVERY, "--grad-accum", "2", "--resume", "auto", steps=4, run_dir=other)
        self.ddp(*EVERY, "--grad-accum", "1", "--resume", "auto", steps=8, ranks=4, run_dir=other)
        self.single(*EVERY, *accumulate, "--resume", "auto", steps=12, run_dir=other)
        self.assert_same_run(other, whole)

    def test_more_than_an_epoch_goes_on_where_it_stopped(self):
        whole, other = self.root / "whole-epochs", self.root / "epochs"
        small = self.root / "small.txt"
        small.write_bytes(self.text.read_bytes()[:4000])  # 124 samples
        flags = (*EVERY, "--data", small, "--val-fraction", "0")
        self.single(*flags, steps=70, run_dir=whole)
        for steps in (33, 70):
            self.single(*flags, "--resume", "auto", steps=steps, run_dir=other)
        self.assert_same_run(other, whole)

    def test_a_killed_run_goes_on_with_the_same_command(self):
        whole = self.root / "whole-killed"
        self.ddp(*EVERY, steps=40, run_dir=whole)
        for _ in range(3):
            process = self.start(*EVERY, "--resume", "auto", ranks=2, steps=40)
            done = max([line["step"] for line in self.lines() if "loss" in line], default=0)
            wait_until(lambda: process.poll() is not None or self.events("checkpoint") and
                       max(line["step"] for line in self.lines() if "loss" in line) > min(done + 6, 38), "progress")
            process.kill()
            process.communicate(timeout=LIMIT)
        self.ddp(*EVERY, "--resume", "auto", steps=40)
        self.assert_same_run(self.run_dir, whole)
        leftovers = [path.name for path in (self.run_dir / "checkpoints").iterdir() if not path.name[5:].isdigit()]
        self.assertEqual(leftovers, [])

    def test_a_finished_run_has_nothing_left_to_do(self):
        self.single(*EVERY)
        before = self.losses()
        result = self.single(*EVERY, "--resume", "auto")
        self.assertEqual(self.losses(), before)
        self.assertNotIn("nan", result.stderr)

    def test_an_older_checkpoint_may_be_chosen_and_later_ones_step_aside(self):
        self.single(*EVERY_STEP, steps=6)
        before = self.losses()
        result = self.single(*EVERY_STEP, "--resume", self.run_dir / "checkpoints/step-2", steps=6)
        self.assertIn("step-6.superseded-", result.stderr)
        self.assertEqual(self.losses(), before)

    def test_another_folder_may_go_on_from_a_run(self):
        self.single(*EVERY, steps=8)
        whole, other = self.root / "whole-other", self.root / "other"
        self.single(*EVERY, steps=12, run_dir=whole)
        self.single(*EVERY, "--resume", self.run_dir, steps=12, run_dir=other)
        self.assertEqual(self.losses(other), self.losses(whole)[8:])
        self.assertEqual(self.steps_saved(), [4, 8])

    def test_only_weights_are_taken_by_init_from(self):
        self.single(*EVERY, steps=8)
        from_file, from_checkpoint = self.root / "from-file", self.root / "from-checkpoint"
        flags = ("--seed", "5", "--lr", "1e-4")
        self.single(*flags, "--init-from", self.run_dir / "final/model.safetensors", run_dir=from_file)
        self.single(*flags, "--init-from", self.run_dir, run_dir=from_checkpoint)
        self.assertEqual(self.losses(from_file), self.losses(from_checkpoint))
        self.assertLess(self.losses(from_file)[0][1], self.losses()[0][1] - 0.1)

    def test_old_checkpoints_go_and_multiples_stay(self):
        flags = ("--keep-last", "2", "--keep-every", "6")
        self.single("--checkpoint-every", "3", *flags, steps=20)
        self.assertEqual(self.steps_saved(), [6, 12, 18, 20])
        self.single("--checkpoint-every", "7", *flags, "--resume", "auto", steps=22)
        self.assertEqual(self.steps_saved(), [6, 12, 18, 21, 22])


class Stopping(ResumeTest):
    def assert_stopped(self, error, reason, requeue=True):
        step = self.losses()[-1][0]
        self.assertEqual(self.steps_saved()[-1], step)
        assert_names(error, f"step {step}", reason)
        stop = self.events("stop")[-1]
        self.assertEqual((stop["step"], stop["reason"], pathlib.Path(stop["checkpoint"])),
                         (step, reason, self.run_dir / "checkpoints" / f"step-{step}"))
        self.assertEqual((self.run_dir / "REQUEUE").exists(), requeue)
        self.assertFalse((self.run_dir / "final").exists())

    def assert_goes_on(self):
        whole = self.root / (self.run_dir.name + "-whole")
        steps = self.losses()[-1][0] + 3
        self.single("--resume", "auto", *EVERY, steps=steps)
        self.assertFalse((self.run_dir / "REQUEUE").exists())
        self.single(steps=steps, *EVERY, run_dir=whole)
        self.assert_same_run(self.run_dir, whole)

    def test_signals_save_and_stop_with_status_9(self):
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP):
            with self.subTest(signal=number.name):
                self.run_dir = self.root / ("stop-" + number.name)
                process = self.start()
                self.wait_for_step(2)
                process.send_signal(number)
                self.assert_stopped(self.end_of(process, 9), number.name)
        self.assert_goes_on()

    def test_a_request_that_comes_while_the_run_starts_waits_for_its_first_step(self):
        process = self.start()
        held = (1 << (signal.SIGUSR1 - 1)) | (1 << (signal.SIGUSR2 - 1))  # alone: Popen's fork blocks more

        def waits():
            lines = pathlib.Path(f"/proc/{process.pid}/status").read_text().splitlines()
            return int(next(line for line in lines if line.startswith("SigBlk")).split()[1], 16) == held
        wait_until(waits, "the program's first lines")
        process.send_signal(signal.SIGUSR2)
        process.send_signal(signal.SIGUSR1)
        self.assert_stopped(self.end_of(process, 9), "SIGUSR1")

    def test_a_caller_who_blocks_signals_can_ask_all_the_same(self):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        self.addCleanup(signal.pthread_sigmask, signal.SIG_UNBLOCK, {signal.SIGTERM})
        process = self.start()
        self.wait_for_step(2)
        process.terminate()
        self.assert_stopped(self.end_of(process, 9), "SIGTERM")

    def test_a_signal_to_dtrun_stops_all_ranks(self):
        process = self.start(ranks=2)
        self.wait_for_step(2)
        process.terminate()
        self.assert_stopped(self.end_of(process, 9), "SIGTERM")

    def test_ranks_below_a_shell_save_when_dtrun_is_stopped(self):
        command = [DTRUN, "-n", "2", "--", "bash", "-c", '"$0" "$@"; echo not reached >&2', DTRAIN, "--strategy", "ddp",
                   *map(str, self.arguments(steps=ENDLESS))]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (process.kill(), process.wait(), process.stderr.close()))
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

    def test_within_slurm_the_status_is_0(self):
        process = self.start(environment={"SLURM_JOB_ID": "7"})
        self.wait_for_step(2)
        process.terminate()
        self.assert_stopped(self.end_of(process, 0), "SIGTERM")

    def test_a_stop_file_is_obeyed_and_removed(self):
        process = self.start(ranks=2)
        self.wait_for_step(2)
        (self.run_dir / "STOP").touch()
        self.assert_stopped(self.end_of(process, 9), f"the file {self.run_dir / 'STOP'}")
        self.assertFalse((self.run_dir / "STOP").exists())

    def test_a_time_limit_is_kept(self):
        self.assert_stopped(self.end_of(self.start("--time-limit", "0.5s"), 9), "--time-limit")

    def test_sigusr2_saves_and_goes_on(self):
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
    def test_other_model_data_seed_and_batch_are_refused_by_name(self):
        self.single(*EVERY)
        other = self.root / "other-text.txt"
        other.write_bytes(self.text.read_bytes()[:-200_000] + b" " * 200_000)
        before = sorted(str(path) for path in self.run_dir.rglob("*"))
        for flags, name in [(("--levels", "3"), "model.levels"), (("--dropout", "0.2"), "model.dropout"),
                            (("--seq-len", "16"), "data.seq_len"), (("--data", other), "data.train"),
                            (("--val-fraction", "0.1"), "data.val_fraction"), (("--seed", "2"), "train.seed"),
                            (("--optimizer", "sgd"), "train.optimizer"), (("--global-batch", "8"), "batch.global")]:
            with self.subTest(name):
                result = self.single(*EVERY, "--resume", "auto", *flags, status=2)
                self.assertIn(name, result.stderr)
                self.assertEqual(len([line for line in result.stderr.splitlines() if "error" in line]), 1)
        self.assertEqual(sorted(str(path) for path in self.run_dir.rglob("*")), before)
        moved = self.root / "moved.txt"
        shutil.copy(self.text, moved)
        self.single(*EVERY, "--resume", "auto", "--data", moved, steps=6)

    def test_what_changes_numbers_is_noted(self):
        self.single(*EVERY)
        result = self.single(*EVERY, "--resume", "auto", "--lr", "1e-3", steps=6)
        assert_names(result.stderr, "train.lr", "0.001", "0.003")

    def test_settings_without_effect_are_told(self):
        result = self.single("--strict-resume", "--keep-every", "5", "--checkpoint-write-limit", "9", "--checkpoint-every", "0")
        for flag in ("--strict-resume", "--keep-every 5", "--checkpoint-write-limit 9"):
            assert_names(result.stderr, "warning", flag)
        result = self.single("--overwrite", "--optimizer", "sgd", "--beta1", "0.8", "--eps", "1e-4", steps=1)
        for flag in ("--beta1", "--eps"):
            assert_names(result.stderr, "warning", flag, "--optimizer sgd")
        result = self.single("--overwrite", "--momentum", "0.5", steps=1)
        assert_names(result.stderr, "warning", "--momentum", "--optimizer adamw")

    def test_fewer_steps_than_the_run_has_taken_are_refused(self):
        self.ddp(*EVERY, steps=6)
        def files():
            return {path: path.read_bytes() for path in self.run_dir.rglob("*") if path.is_file() and path.name != "lock"}

        before = files()
        for start in (self.single, self.ddp):
            result = start(*EVERY, "--resume", "auto", steps=5, status=2)
            self.assertIn("step 6, beyond --steps 5", result.stderr)
        fork = self.root / "short-fork"
        self.run_command([DTRAIN, "--resume", self.run_dir, "--run-dir", fork, "--steps", "5"], status=2)
        self.assertFalse(fork.exists())
        self.assertEqual(before, files())
        self.single(*EVERY, "--resume", "auto", steps=6)  # finished already
        self.assertEqual(self.losses()[-1][0], 6)

    def test_bad_values_are_told_at_once(self):
        for flags, name in [(("--checkpoint-every", "soon"), "--checkpoint-every"), (("--keep-last", "1"), "--keep-last"),
                            (("--time-limit", "1 fortnight"), "--time-limit"),
                            (("--resume", "auto", "--overwrite"), "--overwrite"), (("--resume", ""), "--resume")]:
            self.assertIn(name, self.single(*flags, status=2).stderr)
        self.assertIn("no/such", self.single("--resume", "no/such", status=6).stderr)
        self.assertIn("no/such", self.single("--init-from", "no/such", status=6).stderr)
        self.assertFalse((self.run_dir / "config.json").exists())

    def test_damage_is_named_and_passed_over_unless_strict(self):
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

    def test_without_one_whole_checkpoint_a_run_is_not_begun_anew(self):
        self.single(*EVERY)
        for path in (self.run_dir / "checkpoints").glob("*/manifest.json"):
            path.write_bytes(path.read_bytes()[:-1])
        before = self.losses()
        self.assertIn("manifest.json", self.single(*EVERY, "--resume", "auto", status=6).stderr)
        self.assertEqual(self.losses(), before)

    def test_a_finished_run_without_checkpoints_is_not_begun_anew(self):
        self.single("--checkpoint-every", "none")
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

    def test_a_restart_right_after_a_kill_waits_for_the_lock(self):
        process = self.start(*EVERY, "--resume", "auto")
        wait_until(lambda: self.events("checkpoint"), "a checkpoint")
        holder = subprocess.Popen(["flock", self.run_dir / "lock", "sleep", "1"])
        process.kill()
        process.wait()
        steps = self.losses()[-1][0] + 2
        self.single(*EVERY, "--resume", "auto", steps=steps)
        holder.wait()
        self.assertEqual(self.losses()[-1][0], steps)


class Foreign(ResumeTest):
    def test_what_may_not_be_removed_holds_no_restart_up(self):
        self.single("--checkpoint-every", "1", "--keep-every", "2")  # waits for the save of step 2
        (self.run_dir / "checkpoints/step-2/notes").mkdir()
        leftover = self.run_dir / "checkpoints/step-9.tmp-18ea4b45c0de1234-77"
        leftover.mkdir()
        (leftover / "notes").touch()
        result = self.single("--checkpoint-every", "1", "--keep-every", "0", "--resume", "auto", steps=6)
        assert_names(result.stderr, re.compile("step-2'"), "'notes'")
        self.assertEqual(self.steps_saved_whole(), [2, 4, 5, 6])
        self.assertEqual(self.losses()[-1][0], 6)

    def steps_saved_whole(self):
        return sorted(int(path.parent.name[5:]) for path in self.run_dir.glob("checkpoints/step-?/manifest.json"))

    def test_a_checkpoint_under_the_name_of_another_step_is_passed_over(self):
        self.single(*EVERY, steps=8)
        shutil.copytree(self.run_dir / "checkpoints/step-4", self.run_dir / "checkpoints/step-90")
        result = self.single(*EVERY, "--resume", "auto", steps=9)
        assert_names(result.stderr, "step 4", "older")
        self.assertIn("resumed from " + str(self.run_dir / "checkpoints/step-8"), result.stderr)

    def init_from_two_places(self, path, status):
        """Starts rank 0 in the folder r0 and rank 1 in r1, where `path` means different things."""
        script = self.root / "in-own-folder"
        script.write_text(f'#!/bin/sh\ncd "{self.root}/r$RANK" && exec "$@"\n')
        script.chmod(0o755)
        return self.run_command([DTRUN, "-n", "2", "--", script, DTRAIN, "--strategy", "ddp",
                                 *self.arguments("--init-from", path, run_dir=self.root / "new")], status)

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
    def test_steps_go_on_while_a_slow_disk_is_written_to(self):
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

    def test_the_write_limit_does_not_hold_for_who_wants_to_leave(self):
        # At this limit a save takes three minutes.
        process = self.start("--checkpoint-every", "1", "--checkpoint-write-limit", "0.002")
        wait_until(lambda: list(self.run_dir.glob("checkpoints/step-*")), "a save")
        process.terminate()
        self.end_of(process, 9)
        self.assertEqual(self.steps_saved()[-1], self.losses()[-1][0])

    def mount_small_disk(self, disk):
        disk.mkdir(parents=True)
        # Room for two checkpoints of 0.35 MB, of which at least two are kept.
        mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=900k", "tmpfs", disk], capture_output=True, text=True,
                               check=False)
        if mount.returncode != 0:
            self.skipTest("needs root: to mount a small file system: " + mount.stderr.strip())
        self.addCleanup(subprocess.run, ["umount", "-l", disk], check=True)

    def test_a_save_waits_for_room_on_a_full_disk(self):
        disk = self.run_dir / "checkpoints"
        self.mount_small_disk(disk)
        process = self.start("--checkpoint-every", "2", "--keep-last", "2", "--resume", "auto", ranks=2, steps=10)
        told = next((line for line in iter(process.stderr.readline, "") if holds(line, "30 s")), "")
        self.assertIn(os.strerror(errno.ENOSPC), told)
        subprocess.run(["mount", "-o", "remount,size=9000k", disk], check=True)
        self.end_of(process, 0)
        self.assertEqual(self.steps_saved()[-1], 10)
        self.assertFalse(self.events("end")[0].get("failed_checkpoints"))
        self.run_command([DTRAIN, "checkpoint", "verify", self.run_dir])

    def test_no_line_of_metrics_is_lost_while_checkpoints_fill_the_disk(self):
        self.mount_small_disk(self.run_dir)
        # The room that saves leave is for lines alone.
        process = self.start("--checkpoint-every", "2", "--keep-last", "2", "--resume", "auto", "--tensorboard", "off", ranks=2, steps=80)
        error = process.communicate(timeout=4 * LIMIT)[1]  # three saves wait for room
        self.assertEqual(process.returncode, 6, error)
        self.assertIn("No space left on device", error)
        self.assertEqual([loss[0] for loss in self.losses()], list(range(1, 81)))
        failed = [line["step"] for line in self.events("error") if "failed: " in line["message"]]
        self.assertEqual(failed[-2:], [80, 80])  # the last one is tried twice
        self.assertEqual(self.events("end")[0]["failed_checkpoints"], len(failed) - 1)
        self.assertEqual(self.steps_saved(), [2, 4])
        self.run_command([DTRAIN, "checkpoint", "verify", self.run_dir])


if __name__ == "__main__":
    import unittest
    unittest.main()
