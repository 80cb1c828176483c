"""Transient storage errors: a run ends with the bits of an undisturbed one, or with a status that makes dtrun
restart it."""

import errno
import fcntl
import os
import socket
import subprocess
import threading
import unittest

from dtrain_harness import SideBySide, mount_tmpfs
from messages import assert_names, holds
from resume_test import ResumeTest
from run_folder_test import content_of
from train_test import DTRAIN, LIMIT

CHECKPOINT = 6
EVERY = ("--checkpoint-every", "2")
MAKING = threading.Lock()
AGAIN = "trying again"


class StorageTest(ResumeTest):
    def setUp(self):
        super().setUp()
        self.log = self.root / (self.run_dir.name + ".strace")

    @classmethod
    def whole_run(cls, name, *flags, steps=4):
        """A run that nothing disturbs, made once."""
        run_dir = cls.root / name
        with MAKING:
            if not run_dir.exists():
                cls.single(cls(), *flags, steps=steps, run_dir=run_dir)
        return run_dir

    def traced(self, *rules):
        return ["strace", "-f", "--seccomp-bpf", "-o", self.log, *rules]

    def killed_at_write(self, number, *commands):
        """A script whose program is killed in a job's first attempt, at that write of metrics.jsonl. In each later attempt it runs
        the attempt's shell command before the program."""
        kill = " ".join(map(str, ["strace", "-f", "-o", self.log, "-P", self.run_dir / "metrics.jsonl", "-e", "trace=write",
                                  "-e", f"inject=write:signal=SIGKILL:when={number}"]))
        cases = "".join(f"{attempt}) {command} ;;\n" for attempt, command in enumerate(commands, 1))
        return self.script(f'case $TORCHELASTIC_RESTART_COUNT in\n0) exec {kill} "$@" ;;\n{cases}esac\nexec "$@"\n')

    def disturbed(self, path, faults, *flags, when="1", status=0, steps=4):
        """A run in which calls on `path` (None: on anything) fail; `faults`: CALL:ERROR, of different calls."""
        calls = [fault.split(":")[0] for fault in faults.split()]
        rules = ["-P", path] if path else []
        for fault in faults.split():
            rules += ["-e", f"inject={fault.replace(':', ':error=', 1)}:when={when}"]
        command = [*self.traced(*rules, "-e", "trace=" + ",".join(calls)), DTRAIN, *self.arguments(*EVERY, *flags, steps=steps)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=2 * LIMIT, check=False)
        for call in calls:
            self.assertRegex(self.log.read_text(), rf"\b{call}\b.*\(INJECTED\)")
        self.assertEqual(result.returncode, status, result.stderr)
        return result.stderr

    def assert_undisturbed(self):
        self.assert_same_run(self.run_dir, self.whole_run("undisturbed", *EVERY))
        lines = (self.run_dir / "metrics.jsonl").read_text().splitlines()
        self.assertEqual([line["step"] for line in self.lines() if "loss" in line], [1, 2, 3, 4])
        self.assertEqual(len(lines), len(self.lines()))


class PassingErrors(StorageTest):
    def passes_each(self, cases, *flags, before=None, status=0):
        """The faults of a case have different errors, so that each is seen to be told."""
        name = self.run_dir.name
        for number, (path, faults) in enumerate(cases):
            with self.subTest(path=path, faults=faults):
                self.run_dir = self.root / f"{name}-{number}"
                if before:
                    before()
                stderr = self.disturbed(self.run_dir / path if path else None, faults, *flags, status=status)
                for error in (fault.split(":")[1] for fault in faults.split()):
                    assert_names(stderr, os.strerror(getattr(errno, error)), AGAIN)
                if status != 0:
                    self.single(*EVERY, "--resume", "auto")
                self.assert_undisturbed()

    def check_at_the_start(self):
        self.passes_each((("lock", "openat:EIO newfstatat:ESTALE flock:ENOLCK"), (None, "mkdir:ESTALE rename:EIO")))

    def check_on_the_first_sync_of_each_thread(self):
        # Each try to write the final model syncs in a thread of its own, all of which fail.
        self.passes_each(((None, "fsync:EIO"),), status=CHECKPOINT)
        self.assertEqual(self.steps_saved(), [2, 4])

    def check_on_a_line_of_metrics(self):
        slow = "write:EMFILE:delay_enter=1500000"  # longer than its patience
        self.passes_each((("metrics.jsonl", "openat:EMFILE ftruncate:EIO"), ("metrics.jsonl", slow),
                          ("metrics.jsonl", "write:EIO"), ("metrics.jsonl", "write:ESTALE")))

    def check_at_a_resume(self):
        def begin():
            self.single(*EVERY, steps=2)

        step = "checkpoints/step-2/"
        self.passes_each(((step + "manifest.json", "openat:ESTALE pread64:EIO"), (step + "model-00001-of-00001.safetensors", "openat:EIO"),
                          (step + "optimizer-00001-of-00001.safetensors", "pread64:EIO"), ("metrics.jsonl", "openat:EIO"),
                          ("checkpoints", "openat:EIO")), "--resume", "auto", before=begin)

    def check_without_room(self):
        self.passes_each(((None, "mkdir:ENOSPC rename:EDQUOT"), ("metrics.jsonl", "openat:EDQUOT"), ("lock", "openat:ENOSPC")))

    def check_while_event_files_of_an_older_run_are_removed(self):
        folder = self.run_dir / "tensorboard"
        for fault in ("unlink:EIO", "getdents64:ESTALE"):
            with self.subTest(fault):
                self.single(*EVERY, "--overwrite", steps=2)
                (events,) = folder.iterdir()
                stderr = self.disturbed(events if "unlink" in fault else folder, fault, "--overwrite")
                self.assertIn(AGAIN, stderr)
                self.assertNotIn(events, list(folder.iterdir()))
                self.assert_undisturbed()

    def check_of_the_disk_that_values_are_offloaded_to(self):
        disk = self.root / "offload"
        disk.mkdir()
        flags = ("--offload", f"disk:{disk}")
        self.passes_each(((disk, "statfs:ESTALE openat:EIO"), (None, "fallocate:EDQUOT")), *flags)
        # What could not be written is lost: a restart has it.
        for error in ("EIO", "ESTALE"):
            self.run_dir = self.root / f"offloaded-{error}"
            stderr = self.disturbed(None, f"sync_file_range:{error}", *flags, status=CHECKPOINT)
            self.assertIn(f"--offload disk:{disk}: writing failed", stderr)
            self.single(*EVERY, *flags, "--resume", "auto")
            self.assert_undisturbed()

    def check_on_the_data(self):
        stderr = self.disturbed(self.text, "openat:EIO")
        self.assertIn(AGAIN, stderr)
        self.assert_undisturbed()


class LastingErrors(StorageTest):
    def check_too_many_open_files_are_not_waited_for(self):
        limited = ("sh", "-c", 'ulimit -n 10; exec "$@"', "sh", DTRAIN, *self.arguments("--checkpoint-every", "none"))
        result = subprocess.run(list(map(str, limited)), capture_output=True, text=True, timeout=LIMIT, check=False)
        self.assertEqual(result.returncode, CHECKPOINT, result.stderr)
        (line,) = [line for line in result.stderr.splitlines() if AGAIN in line]
        self.assertIn(os.strerror(errno.EMFILE), line)
        self.assertRegex(line, AGAIN + r".*\b1 s\b")  # not the 30 s of passing errors
        self.assertEqual(line.count(str(self.run_dir)), 1, line)

    def check_metrics_that_cannot_be_written_end_a_run_that_restarts(self):
        path = self.run_dir / "metrics.jsonl"
        stderr = self.disturbed(path, "write:EIO", "--resume", "auto", when="3+", status=CHECKPOINT)
        self.assertIn(AGAIN, stderr)
        assert_names(stderr.splitlines()[-1], path, os.strerror(errno.EIO))
        self.single(*EVERY, "--resume", "auto")
        self.assert_undisturbed()

    def check_metrics_that_find_no_room_end_a_run_that_restarts(self):
        path = self.run_dir / "metrics.jsonl"
        self.disturbed(path, "openat:EDQUOT", when="1+", status=CHECKPOINT)
        self.single(*EVERY, "--resume", "auto")
        self.assert_undisturbed()

    def check_a_checkpoint_that_cannot_be_read_is_skipped_and_kept(self):
        self.single(*EVERY)
        newest = self.run_dir / "checkpoints/step-4"
        before = content_of(newest)
        # Of the run's own save of step 4 nothing is traced: its folder has another name until then.
        stderr = self.disturbed(newest / "manifest.json", "openat:ESTALE", "--resume", "auto", when="1+", steps=3)
        assert_names(stderr, f"'{newest}/manifest.json'", os.strerror(errno.ESTALE))
        self.assertNotIn("renamed to", stderr)
        self.assertEqual(self.events("resume")[0]["step"], 2)
        self.assertEqual(content_of(newest), before)
        # It is of steps that were taken again since, perhaps with other settings.
        stderr = self.single(*EVERY, "--resume", "auto", steps=5).stderr
        assert_names(stderr, f"'{newest}'")
        self.assertEqual([line["step"] for line in self.events("resume")], [2, 3])
        self.assertEqual([line["step"] for line in self.lines() if "loss" in line], [1, 2, 3, 4, 5])
        self.assertEqual([content_of(folder) for folder in newest.parent.glob("step-4.superseded-*")], [before])
        stderr = self.single(*EVERY, "--resume", "auto", steps=6).stderr
        self.assertNotIn("skipping", stderr)
        self.assertEqual(self.events("resume")[-1]["step"], 5)

    def check_a_checkpoint_that_may_not_be_read_is_not_damaged(self):
        self.single(*EVERY)
        newest = self.run_dir / "checkpoints/step-4"
        before = content_of(newest)
        file = newest / "model-00001-of-00001.safetensors"
        stderr = self.disturbed(file, "openat:EKEYEXPIRED", "--resume", "auto", when="1+", steps=3)
        assert_names(stderr, f"'{file}'")
        self.assertNotIn("renamed to", stderr)
        self.assertEqual(self.events("resume")[0]["step"], 2)
        self.assertEqual(content_of(newest), before)

    # Room for two checkpoints of 0.35 MB, of which at least two are kept.
    SMALL = "size=900k"

    def check_a_save_waits_for_room_on_a_full_disk(self):
        disk = self.run_dir / "checkpoints"
        mount_tmpfs(self, disk, self.SMALL)
        process = self.start("--checkpoint-every", "2", "--keep-last", "2", "--resume", "auto", ranks=2, steps=10)
        told = next((line for line in iter(process.stderr.readline, "") if holds(line, "30 s")), "")
        self.assertIn(os.strerror(errno.ENOSPC), told)
        subprocess.run(["mount", "-o", "remount,size=9000k", disk], check=True)
        self.end_of(process, 0)
        self.assertEqual(self.steps_saved()[-1], 10)
        self.assertFalse(self.events("end")[0].get("failed_checkpoints"))
        self.run_command([DTRAIN, "checkpoint", "verify", self.run_dir])

    def check_no_line_of_metrics_is_lost_while_checkpoints_fill_the_disk(self):
        mount_tmpfs(self, self.run_dir, self.SMALL)
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


class Lock(StorageTest):
    def hold(self, holder):
        self.run_dir.mkdir()
        file = (self.run_dir / "lock").open("w")
        self.addCleanup(file.close)
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(holder)
        file.flush()
        return file

    def check_the_lock_of_a_holder_not_known_to_be_alive_is_waited_for(self):
        ended = subprocess.Popen(["true"])
        ended.wait()
        for number, holder in enumerate(("process 7 on host elsewhere",
                                         f"process {ended.pid} on host {socket.gethostname()}")):
            self.run_dir = self.root / f"held-{number}"
            lock = self.hold(holder)
            job = self.start("--resume", "auto", steps=1)
            lines = iter(job.stderr.readline, "")
            told = next((line for line in lines if str(holder) in line), "")
            assert_names(told, f"'{self.run_dir}/lock'", holder)
            fcntl.flock(lock, fcntl.LOCK_UN)
            self.end_of(job, 0)


class Errors(SideBySide, LastingErrors, PassingErrors, Lock):
    """Their waits overlap."""


if __name__ == "__main__":
    unittest.main()
