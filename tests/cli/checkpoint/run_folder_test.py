"""Protection of run folders: what is removed, what is left alone, and what happens if the folder or its lock is replaced."""

import errno
import fcntl
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import unittest

from dtrain_harness import as_nobody, mount_tmpfs, need_mounts, paths_of
from messages import assert_names, error_line, lines_naming
from resume_test import EVERY, EVERY_STEP, ResumeTest
from train_test import DTRAIN, DTRUN, LIMIT, wait_until

USAGE, DATA, CHECKPOINT, MEMORY, PORT = 2, 3, 6, 8, 11
JOB = "18ea4b45c0de1234-77"  # a name of a start


def content_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class FolderTest(ResumeTest):
    def assert_one_line(self, result, *parts):
        line = error_line(result.stderr)
        for part in parts:
            self.assertIn(str(part), line)

    def allow_nobody(self):
        if os.geteuid() != 0:
            return
        need_mounts(self)
        self.root.chmod(0o755)
        self.run_dir.mkdir()
        os.chown(self.run_dir, 65534, 65534)


class Fence(FolderTest):
    def foreign_run(self):
        """A run with step-3 and step-4, a linked step-1 and somebody's own step-2."""
        self.single(*EVERY_STEP)
        checkpoints, elsewhere = self.run_dir / "checkpoints", self.root / (self.run_dir.name + "-elsewhere")
        for step in (1, 2):
            shutil.rmtree(checkpoints / f"step-{step}")
        shutil.copytree(checkpoints / "step-3", elsewhere)
        (checkpoints / "step-1").symlink_to(elsewhere)
        (checkpoints / "step-2").mkdir()
        (checkpoints / "step-2/thesis.txt").write_text("mine")
        self.assertEqual(len(content_of(elsewhere)), 3)
        return checkpoints, elsewhere, content_of(elsewhere)

    def test_links_and_foreign_files_are_left_alone_and_named(self):
        checkpoints, elsewhere, before = self.foreign_run()
        leftover = checkpoints / f"step-8.tmp-{JOB}"
        leftover.mkdir()
        (leftover / "notes").touch()
        for folder in (checkpoints / f"step-9.tmp-{JOB}", checkpoints / f"step-9.superseded-{JOB}"):
            folder.symlink_to(elsewhere)
        result = self.single("--checkpoint-every", "6", "--keep-last", "2", "--keep-every", "0", "--resume", "auto", steps=7)
        self.assertEqual(content_of(elsewhere), before)
        self.assertEqual((checkpoints / "step-2/thesis.txt").read_text(), "mine")
        self.assertTrue((leftover / "notes").exists())
        self.assertEqual(sorted(path.name for path in checkpoints.glob("step-?")),
                         ["step-1", "step-2", "step-6", "step-7"])
        for text in (f"'{checkpoints}/step-2' holds 'thesis.txt'", f"'{checkpoints}/step-1' is a",
                     f"'{checkpoints}/step-9.tmp-{JOB}' is a"):
            self.assertEqual(result.stderr.count(text), 1, result.stderr)

    def test_a_resume_quarantines_no_foreign_folder(self):
        self.single(steps=2)
        checkpoints, elsewhere = self.run_dir / "checkpoints", self.root / "mine"
        shutil.copytree(checkpoints / "step-2", elsewhere)
        (checkpoints / "step-8").symlink_to(elsewhere)
        (checkpoints / "step-9").mkdir()
        (checkpoints / "step-9/thesis.txt").write_text("mine")
        (checkpoints / "step-7").mkdir()  # as a checkpoint that lost its files
        result = self.single("--resume", "auto", steps=4)
        self.assertEqual(sorted(path.name for path in checkpoints.glob("step-[1-9]")), ["step-2", "step-4", "step-8", "step-9"])
        self.assertEqual((checkpoints / "step-9/thesis.txt").read_text(), "mine")
        assert_names(result.stderr, f"'{checkpoints}/step-9'", "'thesis.txt'")
        self.assertEqual(len(lines_naming(result.stderr, "renamed")), 1, result.stderr)

    def test_a_link_in_place_of_a_folder_of_the_run_is_refused(self):
        other = self.root / "other-run"
        self.single(*EVERY, run_dir=other)
        before = content_of(other)
        (other / "profile").mkdir()
        for name in ("checkpoints", "final", "profile"):
            self.run_dir = self.root / ("linked-" + name)
            self.run_dir.mkdir()
            (self.run_dir / name).symlink_to(other / name)
            for flags in (("--overwrite",), ("--resume", "auto"), ()):
                result = self.single(*EVERY, *flags, steps=8, status=USAGE)
                self.assert_one_line(result, self.run_dir / name, "link")
        self.assertEqual(content_of(other), before)

    def test_nothing_is_written_through_a_linked_lock_or_metrics_file(self):
        precious = self.root / "precious"
        for name in ("lock", "metrics.jsonl"):
            precious.write_text("twenty years of work")
            self.run_dir = self.root / ("linked-" + name)
            self.run_dir.mkdir()
            (self.run_dir / name).symlink_to(precious)
            self.assert_one_line(self.single("--resume", "auto", status=USAGE), self.run_dir / name, "link")
            self.assertEqual(precious.read_text(), "twenty years of work")

    def test_a_fifo_is_rejected_without_blocking(self):
        for name in ("lock", "metrics.jsonl", "final/model.safetensors"):
            self.run_dir = self.root / ("fifo-" + name.replace("/", "-"))
            (self.run_dir / name).parent.mkdir(parents=True)
            os.mkfifo(self.run_dir / name)
            self.assert_one_line(self.single("--resume", "auto", status=USAGE), self.run_dir)
        fifo = self.root / "fifo"
        os.mkfifo(fifo)
        for command, status in ((["--config", fifo], USAGE), (["--init-from", fifo], CHECKPOINT)):
            self.assert_one_line(self.single(*command, run_dir=self.root / "no-run", status=status), fifo)

    def test_an_export_replaces_no_fifo_or_device(self):
        self.single(*EVERY)
        target = self.root / "a-fifo"
        os.mkfifo(target)
        result = self.run_command([DTRAIN, "checkpoint", "export", self.run_dir, target, "--overwrite"], USAGE)
        self.assert_one_line(result, target, "regular file")
        self.assertTrue(target.is_fifo())


class OtherHands(FolderTest):
    def test_a_run_whose_folder_was_moved_stops_and_touches_no_other(self):
        first = self.start("--checkpoint-every", "1", "--resume", "auto", ranks=2)
        wait_until(lambda: len(self.steps_saved_by_name()) >= 2, "two checkpoints")
        moved = self.root / "moved-away"
        self.run_dir.rename(moved)
        error = self.end_of(first, CHECKPOINT)
        self.assertIn(f"folder '{self.run_dir}' was moved", error)
        assert_names(error, "--run-dir NEWNAME --resume auto")
        self.assertEqual(lines_naming(error, re.compile("checkpoints/step-.*--resume auto")), [])  # it is not there any more
        self.assertFalse(self.run_dir.exists())
        self.assertFalse((moved / "final").exists())
        self.run_command([DTRAIN, "checkpoint", "verify", moved])

    def test_a_second_job_under_the_old_name_keeps_all_that_it_writes(self):
        second_run = self.root / "second"
        self.single("--checkpoint-every", "1", "--keep-last", "9", "--seed", "7", run_dir=second_run)
        before = content_of(second_run)
        first = self.start("--checkpoint-every", "1", "--keep-last", "2", ranks=2)
        wait_until(lambda: len(self.steps_saved_by_name()) >= 2, "two checkpoints")
        os.rename(self.run_dir, self.root / "first-moved")
        os.rename(second_run, self.run_dir)
        self.assertIn(f"folder '{self.run_dir}' was moved", self.end_of(first, CHECKPOINT))
        self.assertEqual(content_of(self.run_dir), before)

    def steps_saved_by_name(self):
        return [path for path in self.run_dir.glob("checkpoints/step-*") if path.name[5:].isdigit()]

    def test_a_run_whose_lock_was_taken_stops(self):
        first = self.start("--checkpoint-every", "1000")
        self.wait_for_step(2)
        (self.run_dir / "lock").unlink()
        second = self.start("--checkpoint-every", "1000", "--resume", "auto")
        assert_names(self.end_of(first, CHECKPOINT), "another job")
        self.assertIsNone(second.poll())
        second.terminate()
        second.communicate(timeout=LIMIT)

    def test_ranks_that_do_not_share_the_folder_are_refused_and_named(self):
        need_mounts(self)
        self.run_dir.mkdir()
        own = f'exec unshare -m sh -c \'mount -t tmpfs tmpfs {self.run_dir} && exec "$@"\' sh "$@"\n'
        result = self.wrapped('[ "$RANK" = 1 ] || exec "$@"\n' + own, *EVERY, status=USAGE)
        assert_names(result.stderr, "rank 1 of 2", "rank 0's folder")
        self.assertEqual(list(self.run_dir.iterdir()), [])

    def test_the_lock_of_another_user_is_never_reported_as_removable(self):
        if os.geteuid() != 0:
            self.skipTest("needs root: to change the owner of a file")
        self.allow_nobody()
        lock = self.run_dir / "lock"
        lock.write_text("process 12 on host far\x1b[31m")
        command = [DTRAIN, *map(str, self.arguments("--resume", "auto"))]
        result = self.run_command(as_nobody(*command), USAGE)
        self.assert_one_line(result, lock, "user 0", "user 65534")
        os.chown(lock, 65534, 65534)
        result = self.run_command(command, USAGE)
        self.assert_one_line(result, lock, "user 65534", "user 0", f"chown -R 0 {self.run_dir}")
        self.assertNotIn("remove", result.stderr)
        with lock.open() as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            result = self.run_command(command, USAGE)
        self.assert_one_line(result, lock, "process 12", "far?[31m", "user 65534")
        self.assertEqual(sorted(path.name for path in self.run_dir.iterdir()), ["lock"])


class Early(FolderTest):
    def test_a_run_that_cannot_write_its_results_overwrites_nothing(self):
        self.single(*EVERY)
        (self.run_dir / "final/model.safetensors").unlink()
        before = content_of(self.run_dir)
        mount_tmpfs(self, self.run_dir / "final", "ro,size=100k")
        self.assert_one_line(self.single("--overwrite", status=CHECKPOINT), self.run_dir / "final/model.safetensors")
        self.assertEqual({name: text for name, text in content_of(self.run_dir).items() if name != "lock"},
                         {name: text for name, text in before.items() if name != "lock"})

    def test_an_unreadable_line_of_metrics_does_not_lose_others(self):
        self.single(*EVERY)
        path = self.run_dir / "metrics.jsonl"
        before = self.losses()
        lines = path.read_text().splitlines(True)
        path.write_text("".join([*lines[:2], '{"step": 1, "lo\x00\n', *lines[2:]]))
        result = self.single(*EVERY, "--resume", "auto", steps=6)
        assert_names(result.stderr, path)
        self.assertEqual(self.losses()[:4], before)
        self.assertEqual([loss[0] for loss in self.losses()], list(range(1, 7)))

    def test_a_deleted_working_folder_is_a_usage_error(self):
        gone = self.root / "gone"
        gone.mkdir()
        flags = " ".join(map(str, self.arguments(run_dir="relative")))
        for launcher in ("", f"{DTRUN} -n 2 -- "):
            gone.mkdir(exist_ok=True)
            result = self.run_command(["sh", "-c", f"cd {gone}; rmdir {gone}; exec {launcher}{DTRAIN} {flags}"
                                       + (" --strategy ddp" if launcher else "")], USAGE)
            assert_names(result.stderr, "--run-dir relative")

    def test_a_file_size_limit_fails_checkpoints_and_ends_no_run(self):
        command = " ".join(f"'{word}'" for word in [DTRAIN, *self.arguments(*EVERY, steps=8)])
        result = self.run_command(["bash", "-c", f"ulimit -f 60; exec {command}"], CHECKPOINT)
        failed = [line["step"] for line in self.events("error") if "failed: " in line["message"]]
        self.assertEqual(failed, [4, 8, 8])  # the last one is tried twice
        assert_names(result.stderr, os.strerror(errno.EFBIG), "ulimit -f")
        self.assertEqual(len(self.losses()), 8)

    def test_metrics_lost_at_the_end_change_the_exit_status(self):
        # The limit lies between the model's size and that of the metrics.
        flags = self.arguments("--checkpoint-every", "none", steps=600)
        command = " ".join(f"'{word}'" for word in [DTRAIN, *flags])
        result = self.run_command(["bash", "-c", f"ulimit -f 120; exec {command}"], DATA)
        self.assert_one_line(result, self.run_dir / "metrics.jsonl", os.strerror(errno.EFBIG))
        self.assertLess(len(self.losses()), 600)
        self.assertTrue((self.run_dir / "final/model.safetensors").exists())

    def test_a_second_job_on_one_port_is_reported(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            place = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                     "MASTER_PORT": str(taken.getsockname()[1])}
            command = [DTRAIN, "--strategy", "ddp", *map(str, self.arguments())]
            result = subprocess.run(command, env={**os.environ, **place}, capture_output=True, text=True, timeout=LIMIT,
                                    check=False)
        self.assertEqual(result.returncode, PORT, result.stderr)
        self.assert_one_line(result, place["MASTER_PORT"], os.strerror(errno.EADDRINUSE))


class Threads(FolderTest):
    """Without the right to start a thread; root has it always."""

    def test_a_thread_that_cannot_be_started_is_status_8_and_one_line(self):
        self.allow_nobody()
        for flags in (("--threads", "2"), ("--strategy", "dp", "--local-ranks", "2")):
            result = self.run_command(as_nobody("prlimit", "--nproc=1", DTRAIN, *self.arguments(*flags)), MEMORY)
            self.assert_one_line(result, "threads", "ulimit -u")

    def test_a_save_without_a_thread_still_completes(self):
        self.allow_nobody()
        run = self.launched(as_nobody(DTRAIN, *self.arguments(*EVERY, steps=1_000_000)))
        self.wait_for_step(1)
        subprocess.run(as_nobody("prlimit", "--pid", run.pid, "--nproc=1"), check=True)
        done = self.losses()[-1][0]
        wait_until(lambda: any(line["step"] > done + 4 for line in self.events("checkpoint")), "a checkpoint")
        run.terminate()
        self.end_of(run, 9)
        self.run_command([DTRAIN, "checkpoint", "verify", self.run_dir])


class Slow(FolderTest):
    """Slowness and moments, made with strace."""

    def test_a_verification_longer_than_the_timeout_does_not_fail_a_resume(self):
        self.ddp(*EVERY)
        slow = self.run_dir / "checkpoints/step-4/optimizer-00002-of-00002.safetensors"  # dealt to rank 1
        result = self.wrapped('[ "$RANK" = 1 ] || exec "$@"\n'
                              f'exec strace -f --seccomp-bpf -o {self.root}/slow.log -e trace=pread64 -P {slow} '
                              '-e inject=pread64:delay_enter=7500000:when=1 "$@"\n', *EVERY, "--comm-timeout", "5", "--resume", "auto", steps=5)
        self.assertIn("resumed from", result.stderr)
        self.assertIn("pread64", (self.root / "slow.log").read_text())

    def test_a_folder_that_is_moved_while_the_last_step_is_saved_gets_no_final_model(self):
        checkpoints, moved = self.run_dir / "checkpoints", self.root / "moved-while-saving"
        job = subprocess.Popen(["strace", "-f", "--seccomp-bpf", "-o", self.root / "moved.log", "-e", "trace=fsync",
                                "-e", "inject=fsync:delay_enter=1500000:when=1", DTRAIN, *map(str, self.arguments())],
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        wait_until(lambda: paths_of(checkpoints, "step-4.tmp-*"), "the last save")
        self.run_dir.rename(moved)
        final = self.run_dir / "final/model.safetensors"
        final.parent.mkdir(parents=True)
        final.write_text("precious")
        error = job.communicate(timeout=LIMIT)[1]
        self.assertEqual(job.returncode, CHECKPOINT, error)
        self.assertIn(f"folder '{self.run_dir}' was moved", error.splitlines()[-1])
        self.assertEqual(content_of(self.run_dir), {"final/model.safetensors": b"precious"})

    def test_a_failed_sync_after_the_rename_does_not_fail_the_save(self):
        checkpoints = self.run_dir / "checkpoints"
        checkpoints.mkdir(parents=True)
        result = self.run_command(["strace", "-f", "--seccomp-bpf", "-o", self.root / "sync.log", "-P", checkpoints,
                                   "-e", "trace=fsync", "-e", "inject=fsync:error=EIO:when=1",
                                   DTRAIN, *self.arguments("--checkpoint-every", "2", "--resume", "auto")])
        assert_names(result.stderr, "step 2")
        self.assertEqual(self.events("end")[0]["failed_checkpoints"], 0)
        self.assertEqual(self.steps_saved(), [2, 4])
        self.run_command([DTRAIN, "checkpoint", "verify", self.run_dir])

    def test_verify_beside_a_job_does_not_report_removed_checkpoints_as_damaged(self):
        self.single(*EVERY, steps=8)
        checkpoints = self.run_dir / "checkpoints"
        verify = subprocess.Popen(
            ["strace", "-f", "-o", self.root / "verify.log", "-P", checkpoints / "step-8/manifest.json",
             "-e", "inject=openat:signal=SIGSTOP:when=1", DTRAIN, "checkpoint", "verify", self.run_dir],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (verify.kill(), verify.wait(), verify.stdout.close(), verify.stderr.close()))
        log = self.root / "verify.log"
        wait_until(lambda: log.exists() and "stopped by SIGSTOP" in log.read_text(), "the stop")
        child = pathlib.Path(f"/proc/{verify.pid}/task/{verify.pid}/children").read_text().split()
        (checkpoints / "step-4").rename(checkpoints / "step-4.tmp-x")
        os.kill(int(child[0]), signal.SIGCONT)
        out, error = verify.communicate(timeout=LIMIT)
        self.assertEqual((verify.returncode, error), (0, ""))
        self.assertRegex(out, rf"{checkpoints}/step-4: .*\nok: ")
        (checkpoints / "step-8/manifest.json").unlink()
        self.run_command([DTRAIN, "checkpoint", "verify", self.run_dir], CHECKPOINT)
        self.run_command([DTRAIN, "checkpoint", "verify", checkpoints / "step-4"], CHECKPOINT)


if __name__ == "__main__":
    unittest.main()
