"""Passing errors of the storage: a run that meets one ends with the bits of an undisturbed one, or with a status that
restarts; and a restart never begins below what the attempt before has committed."""

import fcntl
import os
import pathlib
import socket
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from resume_test import ResumeTest  # noqa: E402
from run_folder_test import content_of  # noqa: E402
from train_test import DTRAIN, DTRUN, LIMIT  # noqa: E402

CHECKPOINT = 6
EVERY = ("--checkpoint-every", "2")
AGAIN = "trying again for up to 30 s"


class StorageTest(ResumeTest):
    def setUp(self):
        super().setUp()
        self.log = self.root / (self.run_dir.name + ".strace")

    @classmethod
    def undisturbed(cls):
        """A whole run of four steps, made once."""
        run = cls.root / "undisturbed"
        if not run.exists():
            case = cls()
            case.run_dir = run
            case.single(*EVERY)
        return run

    def traced(self, *rules):
        return ["strace", "-f", "--seccomp-bpf", "-o", self.log, *rules]

    def disturbed(self, path, call, error, *flags, when="1", status=0, steps=4):
        """A run in which `call` on `path` (None: on anything) fails."""
        rules = ["-P", path] if path else []
        command = [*self.traced(*rules, "-e", f"trace={call}", "-e", f"inject={call}:error={error}:when={when}"), DTRAIN,
                   *self.arguments(*EVERY, *flags, steps=steps)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=2 * LIMIT, check=False)
        self.assertIn("(INJECTED)", self.log.read_text(), "nothing was injected")
        self.assertEqual(result.returncode, status, result.stderr)
        return result.stderr

    def assert_undisturbed(self):
        self.assert_same_run(self.run_dir, self.undisturbed())
        lines = (self.run_dir / "metrics.jsonl").read_text().splitlines()
        self.assertEqual([line["step"] for line in self.lines() if "loss" in line], [1, 2, 3, 4])
        self.assertEqual(len(lines), len(self.lines()))


class PassingErrors(StorageTest):
    def check_each(self, cases, *flags, before=None):
        name = self.run_dir.name
        for number, (path, call, error) in enumerate(cases):
            with self.subTest(path=path, call=call, error=error):
                self.run_dir = self.root / f"{name}-{number}"
                if before:
                    before()
                stderr = self.disturbed(self.run_dir / path if path else None, call, error, *flags)
                self.assertIn(AGAIN, stderr)
                self.assert_undisturbed()

    def test_at_the_start(self):
        self.check_each((("lock", "openat", "EIO"), ("lock", "flock", "ENOLCK"), (None, "mkdir", "ESTALE"),
                         (None, "fsync", "EIO"), (None, "rename", "EIO")))

    def test_on_a_line_of_metrics(self):
        self.check_each((("metrics.jsonl", "openat", "EMFILE"), ("metrics.jsonl", "write", "EIO"),
                         ("metrics.jsonl", "write", "ESTALE"), ("metrics.jsonl", "ftruncate", "EIO")))

    def test_at_a_resume(self):
        def begin():
            self.single(*EVERY, steps=2)

        step = "checkpoints/step-2/"
        self.check_each(((step + "manifest.json", "openat", "ESTALE"), (step + "manifest.json", "pread64", "EIO"),
                         (step + "model-00001-of-00001.safetensors", "openat", "EIO"),
                         (step + "optimizer-00001-of-00001.safetensors", "pread64", "EIO"),
                         ("metrics.jsonl", "openat", "EIO"), ("checkpoints", "openat", "EIO")),
                        "--resume", "auto", before=begin)

    def test_on_the_data(self):
        stderr = self.disturbed(self.text, "openat", "EIO")
        self.assertIn(AGAIN, stderr)
        self.assert_undisturbed()


class LastingErrors(StorageTest):
    def test_metrics_that_cannot_be_written_end_a_run_that_restarts(self):
        path = self.run_dir / "metrics.jsonl"
        stderr = self.disturbed(path, "write", "EIO", "--resume", "auto", when="3+", status=CHECKPOINT)
        self.assertEqual(stderr.count(AGAIN), 1, stderr)
        self.assertIn(f"{path}: cannot be written: Input/output error", stderr.splitlines()[-1])
        self.single(*EVERY, "--resume", "auto")
        self.assert_undisturbed()

    def test_a_checkpoint_that_cannot_be_read_is_passed_over_and_stays(self):
        self.single(*EVERY)
        newest = self.run_dir / "checkpoints/step-4"
        before = content_of(newest)
        # Of the run's own save of step 4 nothing is traced: its folder has another name until then.
        stderr = self.disturbed(newest / "manifest.json", "openat", "ESTALE", "--resume", "auto", when="1+", steps=3)
        self.assertIn(f"'{newest}/manifest.json' cannot be opened (Stale file handle)", stderr)
        self.assertNotIn("set aside", stderr)
        self.assertEqual(self.events("resume")[0]["step"], 2)
        self.assertEqual(content_of(newest), before)


class Lock(StorageTest):
    def hold(self, holder):
        self.run_dir.mkdir()
        file = (self.run_dir / "lock").open("w")
        self.addCleanup(file.close)
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(holder)
        file.flush()
        return file

    def test_a_holder_that_is_not_known_to_live_is_waited_for(self):
        ended = subprocess.Popen(["true"])
        ended.wait()
        for number, holder in enumerate(("process 7 on host elsewhere",
                                         f"process {ended.pid} on host {socket.gethostname()}")):
            self.run_dir = self.root / f"held-{number}"
            lock = self.hold(holder)
            job = self.start("--resume", "auto", steps=1)
            lines = iter(job.stderr.readline, "")
            told = next((line for line in lines if "is locked by" in line), "")
            self.assertIn(f"{self.run_dir}/lock' is locked by {holder}", told)
            fcntl.flock(lock, fcntl.LOCK_UN)
            self.end_of(job, 0)

    def test_a_holder_that_lives_is_not(self):
        self.hold(f"process {os.getpid()} on host {socket.gethostname()}")
        self.assertIn("is in use by process", self.single("--resume", "auto", status=2).stderr)


class Restarts(StorageTest):
    """A dtrun whose first attempt is killed after a checkpoint, and whose second finds something else."""

    STEPS = 24

    def restarted(self, second, third="", *, restarts=3, status=0):
        script = self.root / (self.run_dir.name + ".sh")
        kill = " ".join(map(str, self.traced("-P", self.run_dir / "metrics.jsonl", "-e", "trace=write", "-e",
                                             "inject=write:signal=SIGKILL:when=20")))
        script.write_text(f'#!/bin/sh\ncase $TORCHELASTIC_RESTART_COUNT in\n0) exec {kill} "$@" ;;\n1) {second or ":"} ;;\n'
                          f'2) {third or ":"} ;;\nesac\nexec "$@"\n')
        script.chmod(0o755)
        return self.run_command([DTRUN, "-n", "1", "--max-restarts", str(restarts), "--restart-backoff", "0.02", "--", script,
                                 DTRAIN, *self.arguments("--checkpoint-every", "4", "--resume", "auto", steps=self.STEPS)],
                                status).stderr

    def refusals(self, stderr):
        return [line for line in stderr.splitlines() if f"run folder '{self.run_dir}': found" in line and "error: " in line]

    def assert_whole(self):
        whole = self.root / "whole"
        if not whole.exists():
            self.single("--checkpoint-every", "4", steps=self.STEPS, run_dir=whole)
        self.assert_same_run(self.run_dir, whole)

    def test_wait_for_a_run_folder_that_is_gone(self):
        away = self.root / "away"
        stderr = self.restarted(f"mv {self.run_dir} {away}", f"[ ! -e {self.run_dir} ] && mv {away} {self.run_dir}")
        self.assertIn("found no checkpoint of this job, but the attempt before had committed step", stderr)
        self.assertEqual(len(set(self.refusals(stderr))), 1, stderr)
        self.assert_whole()

    def test_leave_another_run_alone(self):
        away, other = self.root / "away-for-another", self.root / "other"
        self.single("--checkpoint-every", "4", steps=self.STEPS, run_dir=other)
        before = content_of(other)
        stderr = self.restarted(f"mv {self.run_dir} {away}; mv {other} {self.run_dir}",
                                f"mv {self.run_dir} {other}; mv {away} {self.run_dir}")
        self.assertEqual(len(set(self.refusals(stderr))), 1, stderr)
        self.assertEqual(content_of(other), before)
        self.assert_whole()

    def test_do_not_begin_below_a_checkpoint_that_is_gone(self):
        stderr = self.restarted(f"rm -r {self.run_dir}/checkpoints", restarts=1, status=CHECKPOINT)
        self.assertEqual(len(set(self.refusals(stderr))), 1, stderr)

    def test_go_on_below_one_that_is_damaged(self):
        newest = f"{self.run_dir}/checkpoints/step-$(ls {self.run_dir}/checkpoints | sed s/step-// | sort -n | tail -1)"
        stderr = self.restarted(f"truncate -s 5 {newest}/manifest.json")
        self.assertEqual(self.refusals(stderr), [])
        self.assertIn("trying an older one", stderr)
        self.assert_whole()

    def test_know_the_last_committed_step(self):
        seen = self.root / "seen"
        text = (f'echo "${{DTRUN_COMMITTED_STEP-none}}" >> {seen}; '
                'case $TORCHELASTIC_RESTART_COUNT in 0) echo "committed 8" >&$DTRUN_CONTROL_FD; exit 7 ;; '
                '1) exit 7 ;; 2) echo "committed 4" >&$DTRUN_CONTROL_FD; exit 7 ;; esac')
        self.run_command([DTRUN, "-n", "1", "--max-restarts", "3", "--restart-backoff", "0.02", "--", "bash", "-c", text])
        self.assertEqual(seen.read_text().split(), ["none", "8", "8", "4"])


class Logs(StorageTest):
    def test_a_log_folder_that_vanishes_replaces_no_restart(self):
        for number, then in enumerate((":", "touch logs")):
            folder = self.root / f"logs-{number}"
            folder.mkdir()
            text = (f"cd {folder}; [ $TORCHELASTIC_RESTART_COUNT = 1 ] && echo well && exit 0; rm -r logs; {then}; exit 7")
            command = ["env", "-C", folder, DTRUN, "-n", "1", "--max-restarts", "1", "--restart-backoff", "0.02", "--log-dir", "logs",
                       "--redirects", "3", "--", "bash", "-c", text]
            stderr = self.run_command(command).stderr
            self.assertEqual("attempt 1 has no logs" in stderr, then != ":", stderr)
            logs = list(folder.glob("logs/*/attempt_1/0/stdout.log"))
            self.assertEqual([log.read_text() for log in logs], ["well\n"] if then == ":" else [])


if __name__ == "__main__":
    unittest.main()
