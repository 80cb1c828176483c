"""Files of a run folder: which a start replaces, rejects or leaves behind; slow and failing disks; and system limits: each is reported
quickly by name, and no rank waits for another that hit one."""

import errno
import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import unittest

from dtrain_harness import as_nobody
from messages import assert_names, lines_naming
from resume_test import EVERY, EVERY_STEP
from run_folder_test import JOB, FolderTest, content_of
from train_test import DTRAIN, DTRUN, LIMIT, TrainTest, wait_until

USAGE, CHECKPOINT = 2, 6


def foreign_model():
    header = json.dumps({"__metadata__": {"format": "pt"},
                         "w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return struct.pack("<Q", len(header)) + header + b"\0" * 4


class Foreign(FolderTest):
    def test_files_that_dtrain_did_not_write_are_never_replaced(self):
        for name, content in (("config.json", b'{"model_type": "bert", "model": {"layers": 4}}'),
                              ("metrics.jsonl", b'{"step": 1, "loss": 2.5}\n{"step": 2, "loss": 2.4}\n'),
                              ("final/model.safetensors", foreign_model())):
            self.run_dir = self.root / ("foreign-" + name.replace("/", "-"))
            (self.run_dir / name).parent.mkdir(parents=True)
            (self.run_dir / name).write_bytes(content)
            for flags in (("--overwrite",), ("--resume", "auto")):
                result = self.single(*flags, status=USAGE)
                self.assert_one_line(result, self.run_dir / name, " ".join(flags))
            self.assertEqual(content_of(self.run_dir), {name: content})

    def test_runs_of_older_versions_are_recognised_and_resumed(self):
        self.single(*EVERY)
        path = self.run_dir / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text())["resolved"]))  # all that there was
        metrics = self.run_dir / "metrics.jsonl"
        lines = metrics.read_text().splitlines(True)
        start = json.loads(lines[0])
        del start["provenance"]
        lines[0] = json.dumps(start, separators=(",", ":")) + "\n"
        metrics.write_text("".join(lines))
        self.single(*EVERY, "--resume", "auto", steps=5)
        # The first line may have been lost with the machine.
        metrics.write_text("\0" * 500 + "\n" + "".join(lines[1:]))
        self.single(*EVERY, "--resume", "auto", steps=6)
        metrics.write_text("")
        self.single("--overwrite", steps=1)
        self.assertEqual([loss[0] for loss in self.losses()], [1])

    def content_but_lock(self, run):
        return {name: content for name, content in content_of(run).items() if name != "lock"}

    def test_a_run_whose_checkpoints_are_missing_is_not_restarted(self):
        self.single(*EVERY)
        (self.run_dir / "final/model.safetensors").unlink()  # as if it had been stopped
        checkpoints, away = self.run_dir / "checkpoints", self.root / "away"
        other = self.root / "goes-on-elsewhere"
        self.single("--resume", checkpoints / "step-4", "--checkpoint-every", "none", steps=5, run_dir=other)
        (other / "final/model.safetensors").unlink()
        checkpoints.rename(away)
        for run in (self.run_dir, other):
            before = self.content_but_lock(run)
            result = self.single(*EVERY, "--resume", "auto", run_dir=run, status=USAGE)
            self.assert_one_line(result, f"{run}/metrics.jsonl", f"{checkpoints}/step-4", "--overwrite")
            self.assertEqual(self.content_but_lock(run), before)
        away.rename(checkpoints)
        self.single(*EVERY, "--resume", "auto", steps=5)
        self.assertEqual(len(self.losses()), 5)


class Leftovers(FolderTest):
    def test_only_leftovers_with_start_ids_are_removed(self):
        self.single(*EVERY)
        checkpoints = self.run_dir / "checkpoints"
        for name in ("step-4.tmp-mine", "step-4.tmp-2024-06", "step-4.superseded-mine", "step-4.tmp-" + JOB,
                     "step-4.superseded-" + JOB):
            shutil.copytree(checkpoints / "step-4", checkpoints / name)
        kept = {"step-4.tmp-mine", "step-4.tmp-2024-06", "step-4.superseded-mine"}
        self.single(*EVERY, "--resume", "auto", steps=5)
        self.assertEqual({path.name for path in checkpoints.iterdir()},
                         {*kept, "step-4", "step-5", "step-4.superseded-" + JOB})
        self.single("--overwrite", steps=1)
        self.assertEqual({path.name for path in checkpoints.iterdir()}, {*kept, "step-1"})

    def test_a_start_that_fails_leaves_no_folder_of_its_own_naming(self):
        where = self.root / "failed"
        where.mkdir()
        self.single("--width", "16", "--checkpoint-every", "none", steps=1)
        for launcher, strategy in (([], []), ([DTRUN, "-n", "2", "--"], ["--strategy", "ddp"])):
            arguments = self.arguments("--init-from", self.run_dir / "final/model.safetensors", *strategy)
            at = arguments.index("--run-dir")
            del arguments[at:at + 2]
            result = self.run_command(["env", "-C", where, *launcher, DTRAIN, *arguments], USAGE)
            self.assertEqual(list(where.iterdir()), [], result.stderr)


class Disks(FolderTest):
    def test_an_unreadable_checkpoint_does_not_stop_pruning_and_is_reported_once(self):
        self.allow_nobody()
        self.by_nobody(*EVERY_STEP, steps=2)
        checkpoints = self.run_dir / "checkpoints"
        (checkpoints / "step-1").chmod(0)
        self.addCleanup((checkpoints / "step-1").chmod, 0o755)
        result = self.by_nobody("--checkpoint-every", "5", "--keep-every", "0", "--keep-last", "2", "--resume", "auto", steps=6)
        self.assertEqual(sorted(path.name for path in checkpoints.iterdir()), ["step-1", "step-5", "step-6"])
        self.assertEqual(len(lines_naming(result.stderr, f"'{checkpoints}/step-1'", os.strerror(errno.EACCES))), 1, result.stderr)

    def by_nobody(self, *flags, steps):
        """Root may read everything."""
        return self.run_command(as_nobody(DTRAIN, *self.arguments(*flags, steps=steps)))

    def traced(self, *rules, name="strace"):
        return ["strace", "-f", "--seccomp-bpf", "-o", self.root / (name + ".log"), *rules]

    def test_the_last_save_is_retried_once(self):
        checkpoints, log = self.run_dir / "checkpoints", self.root / "tries.log"
        # Each try runs in a thread of its own, and is stopped there once it has looked for the folder.
        stops = self.traced("-P", checkpoints, "-e", "trace=mkdir", "-e", "inject=mkdir:signal=SIGSTOP:when=1", name="tries")
        run = self.launched([*stops, DTRAIN, *self.arguments(steps=1000)])
        self.wait_for_step(1)
        checkpoints.write_text("in the way")
        for tries in (1, 2):
            wait_until(lambda: re.search(r"(--- SIGSTOP \{.*?stopped by.*?){%d}" % tries, log.read_text(), re.DOTALL),
                       f"try {tries}")
            if tries == 2:
                checkpoints.unlink()
                checkpoints.mkdir()
            child = pathlib.Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()[0]
            os.kill(int(child), signal.SIGCONT)
        error = self.end_of(run, 0)
        self.assertRegex(error, r"warning: .*step 1000 .*checkpoints")
        self.assertEqual(len(self.events("error")), 1)
        self.assertEqual(self.events("end")[0]["failed_checkpoints"], 0)
        self.assertEqual(self.steps_saved(), [1000])

    def test_no_rank_gives_up_while_rank_0_erases_a_run_or_syncs_the_model(self):
        self.ddp(*EVERY)
        metrics, final = self.run_dir / "metrics.jsonl", self.run_dir / "final"
        slow = self.traced("-P", metrics, "-P", final, "-e", "trace=unlink,fsync", "-e", "inject=unlink:delay_enter=7500000:when=1",
                           "-e", "inject=fsync:delay_enter=7500000:when=1", name="slow")
        self.wrapped('[ "$RANK" = 0 ] || exec "$@"\n' + f'exec {" ".join(map(str, slow))} "$@"\n', "--comm-timeout", "5", "--overwrite",
                     "--checkpoint-every", "none", steps=1)
        log = (self.root / "slow.log").read_text()
        self.assertEqual((log.count("unlink("), log.count("fsync(")), (1, 1), log)


def quoted(command):
    return " ".join(f"'{word}'" for word in command)


class Limits(TrainTest):
    def ddp_command(self, *flags):
        return [DTRAIN, "--strategy", "ddp", *self.arguments("--overwrite", *flags, steps=1)]

    def error_of(self, command, status):
        """The first error of a command, each of which is one line."""
        result = self.run_command(command, status)
        errors = [line for line in result.stderr.splitlines() if "error: " in line and not line.startswith("dtrun: failed")]
        self.assertTrue(errors, result.stderr)
        self.assertNotIn("unexpected", result.stderr)
        return errors

    def limited(self, limit, command):
        return ["sh", "-c", f"ulimit -Sn {limit}; ulimit -Hn {limit}; exec {quoted(command)}"]


class Descriptors(Limits):
    def test_dtrun_names_the_limit(self):
        error, = self.error_of(self.limited(10, [DTRUN, "-n", "2", "--", *self.ddp_command()]), 12)
        assert_names(error, os.strerror(errno.EMFILE), "10 files", "ulimit -n")

    # At each of these numbers something else is the first that cannot be opened, or nothing any more.
    def test_a_rank_names_the_limit_or_trains(self):
        for backend, limits in (("shm", (8, 10)), ("gloo", (10, 16))):
            for limit in limits:
                ranks = self.limited(limit, self.ddp_command("--backend", backend))
                result = subprocess.run([DTRUN, "-n", "2", "--", *ranks], capture_output=True, text=True, timeout=LIMIT,
                                        check=False)
                with self.subTest(backend=backend, limit=limit, error=result.stderr):
                    self.assertIn(result.returncode, (0, 4) if limit > 10 else (4,))
                    self.assertNotIn("unexpected", result.stderr)
                    if result.returncode != 0:
                        self.assertIn(f"may open {limit} files", result.stderr)

    def test_a_low_soft_limit_is_raised(self):
        command = [DTRUN, "-n", "2", "--", "sh", "-c", f"ulimit -n; exec {quoted(self.ddp_command())}"]
        result = self.run_command(["sh", "-c", f"ulimit -Sn 11; exec {quoted(command)}"])
        self.assertEqual(result.stdout.count("11\n"), 2, "other programs get the limit that dtrun found")


class Threads(Limits):
    def refusing(self, number, command):
        """The command, whose main thread cannot start its thread of that number; the first few only try whether they could."""
        return ["strace", "-f", "--seccomp-bpf", "-qq", "-o", "/dev/null", "-e", "trace=clone,clone3",
                "-e", f"inject=clone,clone3:error=EAGAIN:when={number}", *command]

    def check(self, errors):
        self.assertTrue(any("thread" in error and "ulimit -u" in error for error in errors), errors)

    def test_ranks_that_are_threads_do_not_wait_for_one_that_cannot_start(self):
        command = [DTRAIN, "--strategy", "dp", "--local-ranks", "2", *self.arguments()]
        self.check(self.error_of(self.refusing(10, command), 8))

    def test_a_rank_that_cannot_start_a_group_thread_notifies_the_others(self):
        refusing = quoted(self.refusing(7, self.ddp_command()))
        script = f"[ $RANK = 0 ] || exec {refusing}; exec {quoted(self.ddp_command())}"
        result = self.run_command([DTRUN, "-n", "2", "--", "sh", "-c", script], 8)
        self.assertIn("ulimit -u", result.stderr)


if __name__ == "__main__":
    unittest.main()
