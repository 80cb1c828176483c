"""--max-restarts: a failed job is restarted as a whole while restarts can help, and reports their cost."""

import os
import re
import shutil
import signal
import subprocess
import time

from dtrain_harness import CONSTANT_RATE, DTRAIN, final_model, metrics_of, overriding, run
from dtrun_harness import DTRUN, LIMIT, DtrunTest, children_of, main, program_of, variable_of, wait_until
from messages import assert_names, holds, lines_naming

QUICKLY = ("--restart-backoff", "0.02")
HANG = "sleep 60"
TELL = 'tell() { echo "$1" >&$DTRUN_CONTROL_FD; }; '  # the control protocol of dtrain
TINY = (*CONSTANT_RATE, "--layers", "2", "--width", "32", "--heads", "2", "--neurons", "64", "--seq-len", "32", "--global-batch", "4", "--lr", "3e-3",
        "--threads", "1", "--log-every", "0")


class RestartTest(DtrunTest):
    def restarted(self, text, restarts, *options, ranks=2, **more):
        """The result of a dtrun whose ranks run a bash script."""
        return self.dtrun("-n", str(ranks), "--max-restarts", str(restarts), *QUICKLY, *options, "--", "bash", "-c",
                          TELL + text, **more)

    def restarts_of(self, process):
        return re.findall(r"^dtrun: restart (\d+) of (\d+) in ", process.err, re.MULTILINE)

    def last_line(self, process):
        return process.err.strip().splitlines()[-1]

    def attempts(self):
        """The restart counts that ranks have left in files."""
        return sorted(path.name for path in self.folder.glob("attempt-*"))


class Budget(RestartTest):
    def test_a_rank_that_fails_once_costs_one_restart_of_all(self):
        process = self.restarted("touch attempt-$TORCHELASTIC_RESTART_COUNT-of-$TORCHELASTIC_MAX_RESTARTS-$RANK; "
                                 f"[ $RANK-$TORCHELASTIC_RESTART_COUNT = 1-0 ] && exit 7; "
                                 f"[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; {HANG}", 3, status=0)
        self.assertEqual([("1", "3")], self.restarts_of(process))
        assert_names(process.err, "restart 1 of 3", "20 ms", "rank 1", "status 7")
        self.assertLessEqual({"attempt-0-of-3-1", "attempt-1-of-3-0", "attempt-1-of-3-1"}, set(self.attempts()))
        assert_names(process.err, "attempt 0", "rank 1", "status 7")
        assert_names(self.last_line(process), "attempt 1", "status 0")

    def test_a_rank_that_always_fails_uses_the_budget_up_and_its_status_stays(self):
        process = self.restarted("[ $RANK = 1 ] && kill -9 $$; " + HANG, 2, status=137)
        self.assertEqual([("1", "2"), ("2", "2")], self.restarts_of(process))
        assert_names(self.last_line(process), "dtrun: failed", "2 restarts", "rank 1", "signal 9")

    def test_a_restart_that_cannot_start_the_ranks_is_part_of_the_history(self):
        shutil.copy("/bin/sh", self.folder / "program")
        process = self.dtrun("-n", "1", "--max-restarts", "2", *QUICKLY, "--", "./program", "-c", "rm program; exit 7", status=12)
        *_, first, second, error = process.err.splitlines()
        assert_names(first, "attempt 0", "rank 0", "status 7")
        assert_names(second, "attempt 1")
        assert_names(error, "dtrun: error", "'./program'")

    def test_restarts_end_after_three_without_a_newer_checkpoint(self):
        process = self.restarted("tell 'progress 7'; tell 'committed 5'; exit 7", 50, ranks=1, status=7)
        self.assertEqual(3, len(self.restarts_of(process)))
        assert_names(process.err, "restart 3 of 50", "80 ms", "rank 0", "status 7", "step 7", "step 5")
        assert_names(self.last_line(process), "not started", "3 restarts")


class Starts(RestartTest):
    """strace has the supervisor's starts of a later attempt fail."""

    def start_traced(self, restarts, *rules):
        text = "[ $TORCHELASTIC_RESTART_COUNT = 0 ] || exit 0; touch ready; until [ -e go ]; do sleep 0.01; done; exit 7"
        process = self.start("-n", "1", "--max-restarts", str(restarts), *QUICKLY, "--", "bash", "-c", text)
        self.addCleanup(process.communicate)
        self.addCleanup(self.kill_survivors)
        self.wait_for_files("ready")
        (supervisor,) = children_of(process.pid)
        tracer = self.attach(supervisor, *rules)
        (self.folder / "go").touch()
        return process, tracer

    def end_of(self, process, head=""):
        process.err = head + process.communicate(timeout=LIMIT)[1]
        self.assert_nothing_left()

    def test_restarts_wait_for_a_transient_storage_error_of_the_program(self):
        process, tracer = self.start_traced(1, "-f", "-e", "trace=execve", "-e", "inject=execve:error=EIO")
        head = ""
        while "trying again" not in head:
            line = process.stderr.readline()
            self.assertTrue(line, head)
            head += line
        tracer.terminate()  # the disk works again
        self.end_of(process, head)
        self.assertEqual((0, [("1", "1")]), (process.returncode, self.restarts_of(process)), process.err)

    def test_an_attempt_that_cannot_fork_has_failed(self):
        process, _ = self.start_traced(2, "-e", "trace=vfork", "-e", "inject=vfork:error=EAGAIN:when=1")
        self.end_of(process)
        self.assertEqual((0, [("1", "2"), ("2", "2")]), (process.returncode, self.restarts_of(process)), process.err)
        self.assertIn("dtrun: error: cannot start 'bash'", process.err)


class Environment(RestartTest):
    def test_each_attempt_has_new_logs_a_new_port_and_the_reason(self):
        self.restarted('echo "$MASTER_PORT $TORCHELASTIC_RUN_ID $DTRUN_RESTART_REASON"; '
                       "[ -e $TORCHELASTIC_ERROR_FILE ] && echo stale; touch $TORCHELASTIC_ERROR_FILE; "
                       "[ $TORCHELASTIC_RESTART_COUNT = 2 ] || exit 7", 2, "--log-dir", "logs", ranks=1, status=0)
        logs = sorted((self.folder / "logs").glob("*/attempt_*/0/stdout.log"))
        self.assertEqual(["attempt_0", "attempt_1", "attempt_2"], [log.parts[-3] for log in logs])
        words = [log.read_text().split() for log in logs]
        self.assertEqual((3, 1), tuple(len(set(column)) for column in list(zip(*words))[:2]))
        self.assertEqual([], words[0][2:])
        for _, _, *reason in words[1:]:
            assert_names(" ".join(reason), "rank 0", "status 7")
        self.assertNotIn("stale", str(words))

    def test_a_port_that_the_user_named_stays(self):
        process = self.restarted("echo $MASTER_PORT; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 7", 1,
                                 "--master-port", "0", ranks=1)
        port = process.out.split()[0]
        process = self.restarted("echo $MASTER_PORT; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 7", 1,
                                 "--master-port", port, ranks=1)
        self.assertEqual([port, port], process.out.split())

    def test_a_port_that_was_taken_may_be_free_the_next_time(self):
        port = self.restarted("echo $MASTER_PORT", 0, ranks=1).out.strip()
        for options in ((), ("--master-port", port)):
            process = self.restarted("exit 11", 1, *options, ranks=1)
            self.assertEqual((11, [("1", "1")]), (process.returncode, self.restarts_of(process)))


class Measures(RestartTest):
    def test_recovery_and_effective_time_are_measured(self):
        text = ("s=$((TORCHELASTIC_RESTART_COUNT * 4)); for i in 1 2 3 4 5 6; do s=$((s + 1)); tell \"progress $s\"; "
                "[ $i = 4 ] && tell \"committed $s\"; sleep 0.2; done; "
                "[ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 7")
        process = self.restarted(text, 1, ranks=1, status=0)
        # Steps 5 and 6 are done twice, 1 and 5 lead their attempts: 0.2 s each of 2-6 and 7-10.
        found = re.search(r"recovery time ([\d.]+ \w+) .*, \1 .*; .* ([\d.]+)% of (.*)$",
                          process.err, re.MULTILINE)
        self.assertIsNotNone(found, process.err)
        assert_names(process.err, "attempt 1", "status 0", "step 10", re.compile(f" {re.escape(found[1])}(;|$)"))
        useful, wall, recovery = float(found[2]) / 100 * self.seconds(found[3]), self.seconds(found[3]), self.seconds(found[1])
        self.assertGreater(useful, 1.2)
        self.assertGreaterEqual(recovery, 0.4)  # the back-off and the repeated steps
        self.assertLess(useful, wall - 0.4)

    def seconds(self, text):
        number, unit = text.split()
        return float(number) * {"ms": 1e-3, "s": 1}[unit]

    def test_rank_0_gets_the_recovery_time(self):
        process = self.restarted('tell "progress $((TORCHELASTIC_RESTART_COUNT + 1))"; '
                                 "[ $TORCHELASTIC_RESTART_COUNT = 0 ] && exit 7; read line <&$DTRUN_CONTROL_FD; echo $line",
                                 1, ranks=1)
        self.assertRegex(process.out, r"^recovered \d\.\d{3}\n$")


class Stop(RestartTest):
    LONG = ("--max-restarts", "5", "--restart-backoff", "50")

    def start_failing(self, text="exit 7", *options, ranks=1):
        return self.start("-n", str(ranks), *self.LONG, *options, "--", "bash", "-c", text)

    def end_of(self, process):
        process.out, process.err = process.communicate(timeout=LIMIT)
        self.assert_nothing_left()
        return process

    def test_a_signal_interrupts_the_back_off_at_once(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            process = self.start_failing()
            head = ""
            while "restart 1 of 5 in 50 s" not in head:
                head += process.stderr.readline()
            os.kill(process.pid, signal.SIGUSR2)  # requests nothing
            begin = time.monotonic()
            process.send_signal(number)
            self.end_of(process)
            self.assertLess(time.monotonic() - begin, 10)
            self.assertEqual(7, process.returncode)
            assert_names(self.last_line(process), "dtrun: not started", number.name)

    SAVED = TELL + "tell \"requeue-file $PWD/REQUEUE\"; tell 'committed 5'; "

    def stopped_in_the_back_off(self, number, text, **more):
        process = self.start("-n", "1", *self.LONG, "--", "bash", "-c", text, **more)
        while "restart 1 of 5 in 50 s" not in process.stderr.readline():
            pass
        process.send_signal(number)
        return self.end_of(process)

    def test_a_stop_in_the_back_off_requests_a_requeue_if_there_is_a_checkpoint(self):
        requeue = self.folder / "REQUEUE"
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            requeue.unlink(missing_ok=True)
            process = self.stopped_in_the_back_off(number, self.SAVED + "exit 7")
            self.assertEqual(9, process.returncode, process.err)
            assert_names(requeue.read_text(), "step 5", number.name)
            assert_names(self.last_line(process), "not started", number.name, "step 5")
        requeue.unlink()
        process = self.stopped_in_the_back_off(signal.SIGQUIT, self.SAVED + "exit 7")
        self.assertEqual((7, False), (process.returncode, requeue.exists()), process.err)

    def test_without_a_requeue_the_failure_counts_and_within_slurm_a_stop_is_0(self):
        slurm, requeue = {"SLURM_JOB_ID": "7"}, self.folder / "REQUEUE"
        unnamed = TELL + "tell 'committed 5'; "
        for text, env, status, warning in ((self.SAVED, slurm, 0, None), (self.SAVED.replace("$PWD", "$PWD/gone"), {}, 7, "gone/REQUEUE"),
                                           (unnamed, {}, 7, "requeue-file"), (unnamed, slurm, 7, "requeue-file")):
            requeue.unlink(missing_ok=True)
            process = self.stopped_in_the_back_off(signal.SIGUSR1, text + "exit 7", env=env)
            self.assertEqual((status, status == 0), (process.returncode, requeue.exists()), process.err)
            self.assertRegex(process.err, f"dtrun: warning: .*{warning}" if warning else "dtrun: ")

    def test_a_stop_while_a_failed_attempt_ends_requests_a_requeue(self):
        text = self.SAVED + "trap '' TERM USR1; touch ready-$RANK; [ $RANK = 1 ] && { sleep 0.2; exit 7; }; " + HANG
        process = self.start_failing(text, "--abort-grace", "0.6", ranks=2)
        while not holds(process.stderr.readline(), "status 7"):
            pass
        process.send_signal(signal.SIGUSR1)
        self.end_of(process)
        self.assertEqual((9, True), (process.returncode, (self.folder / "REQUEUE").exists()), process.err)

    def test_a_dtrun_that_is_killed_in_the_back_off_leaves_nothing(self):
        process = self.start_failing()
        while "restart 1 of 5" not in process.stderr.readline():
            pass
        process.kill()
        process.communicate()
        wait_until(lambda: not self.marked(), "the end of the supervisor", limit=2)

    def test_a_stop_while_the_others_end_is_remembered(self):
        process = self.start_failing("trap '' TERM; touch ready-$RANK; [ $RANK = 1 ] && { sleep 0.2; exit 7; }; " + HANG,
                                     "--abort-grace", "0.6", ranks=2)
        while not holds(process.stderr.readline(), "status 7"):
            pass
        process.send_signal(signal.SIGTERM)
        self.end_of(process)
        self.assertEqual(7, process.returncode)
        assert_names(self.last_line(process), "not started", "SIGTERM")

    def test_a_stop_of_a_restarted_job_reaches_its_ranks(self):
        process = self.start("--max-restarts", "5", *QUICKLY, "--", "bash", "-c",
                             "[ $TORCHELASTIC_RESTART_COUNT = 0 ] && exit 7; "
                             "trap 'exit 9' TERM; touch ready; sleep 60 & wait")
        self.wait_for_files("ready")
        process.send_signal(signal.SIGTERM)
        self.end_of(process)
        self.assertEqual(9, process.returncode, process.err)


class Training(RestartTest):
    """The real dtrain, with command lines that lack --resume."""

    def setUp(self):
        super().setUp()
        with (self.folder / "text").open("wb") as file:
            subprocess.run(["bible", "-f", "gen1:1-gen10:32"], stdout=file, check=True, timeout=20)

    def command(self, *flags, steps):
        return (DTRAIN, "--strategy", "ddp", *overriding([*TINY, "--data", "text", "--steps", str(steps)], *flags))

    def start_training(self, *flags, steps):
        process = self.start("-n", "2", "--max-restarts", "9", *QUICKLY, "--", *self.command(*flags, steps=steps))
        self.addCleanup(process.communicate)
        self.addCleanup(self.kill_survivors)
        return process

    def lines(self, run_dir):
        path = self.folder / run_dir / "metrics.jsonl"
        try:
            return [line for line in path.read_text().splitlines(True) if line.endswith("\n")]
        except FileNotFoundError:  # not created yet, or removed by a start from step 0
            return []

    def kill_rank(self, number):
        (pid,) = [pid for pid in self.marked() if program_of(pid) == "dtrain" and variable_of(pid, "RANK") == str(number)]
        os.kill(pid, signal.SIGKILL)

    def kill_after(self, rank, run_dir, start, *marks):
        """Kills a rank when the run's start-th start has written lines with `marks`, in their order."""
        def is_there():
            lines = self.lines(run_dir)
            starts = [i for i, line in enumerate(lines) if '"event":"start"' in line]
            rest = iter(lines[starts[-1]:] if len(starts) == start else ())
            return all(any(mark in line for line in rest) for mark in marks)
        wait_until(is_there, f"{marks} of start {start}", limit=60)
        self.kill_rank(rank)

    def end_of(self, process):
        error = process.communicate(timeout=60)[1]
        self.assertEqual(0, process.returncode, error)
        self.assert_nothing_left()
        return error

    def test_a_run_that_is_killed_twice_equals_an_undisturbed_run_bit_for_bit(self):
        for name in ("whole", "killed"):
            (self.folder / name).mkdir()
        run(DTRUN, "-n", "2", "--", *self.command("--run-dir", "whole", steps=600), cwd=self.folder)
        # --overwrite is for the first attempt alone.
        (self.folder / "killed" / "metrics.jsonl").write_text("")
        process = self.start_training("--run-dir", "killed", "--overwrite", "--checkpoint-every", "10", steps=600)
        self.kill_after(1, "killed", 1, '"event":"checkpoint"')
        # A resume drops the lines of later steps; the first save may have begun before the recovery was reported.
        self.kill_after(0, "killed", 2, '"event":"recovery"', '"event":"checkpoint"', '"event":"checkpoint"')
        error = self.end_of(process)
        whole, killed = self.folder / "whole", self.folder / "killed"
        self.assertEqual(final_model(whole).read_bytes(), final_model(killed).read_bytes())
        losses = [[(line["step"], line["loss"]) for line in metrics_of(folder) if "loss" in line] for folder in (whole, killed)]
        self.assertEqual(*losses)
        self.check_history(metrics_of(killed), error)
        self.assertEqual(lines_naming(error, "dtrain", "--checkpoint-every"), [])

    def test_new_data_begins_once_despite_restarts(self):
        (self.folder / "other").write_bytes((self.folder / "text").read_bytes()[5000:20000])
        run(DTRUN, "-n", "2", "--", *self.command("--run-dir", "whole", steps=4), cwd=self.folder)
        shutil.copytree(self.folder / "whole", self.folder / "killed")
        flags = ("--resume", "auto", "--new-data", "--data", "other", "--checkpoint-every", "10")
        run(DTRUN, "-n", "2", "--", *self.command("--run-dir", "whole", *flags, steps=300), cwd=self.folder)
        process = self.start_training("--run-dir", "killed", *flags, steps=300)
        self.kill_after(1, "killed", 2, '"event":"resume"')  # the newest checkpoint is of the old data
        self.kill_after(0, "killed", 3, '"event":"checkpoint"')
        self.end_of(process)
        whole, killed = self.folder / "whole", self.folder / "killed"
        steps = [[(line["step"], line["loss"], line["samples"]) for line in metrics_of(folder) if "loss" in line]
                 for folder in (whole, killed)]
        self.assertEqual(*steps)
        self.assertEqual([number for step, _, number in steps[0][4:]], [4 * step for step in range(1, 297)])
        self.assertEqual(final_model(whole).read_bytes(), final_model(killed).read_bytes())

    def check_history(self, lines, error):
        starts = [line["provenance"] for line in lines if line.get("event") == "start"]
        self.assertEqual([0, 1, 2], [start["restarts"] for start in starts])
        for start, rank in zip(starts[1:], (1, 0)):
            assert_names(start["restart_reason"], f"rank {rank}", "signal 9")
        resumed = [line["step"] for line in lines if line.get("event") == "resume"]
        recovered = [line for line in lines if line.get("event") == "recovery"]
        self.assertEqual((2, 2), (len(resumed), len(recovered)))
        self.assertGreater(min(line["seconds"] for line in recovered), 0)
        self.assertRegex(error, r"effective .* [\d.]+% of ")
        self.assertEqual([("1", "9"), ("2", "9")], re.findall(r"restart (\d) of (\d) in", error))

    def test_a_stop_in_the_back_off_leaves_the_run_to_resume(self):
        flags = ("--run-dir", "run", "--checkpoint-every", "10")
        process = self.start("-n", "2", "--max-restarts", "9", "--restart-backoff", "50", "--", *self.command(*flags, steps=10**6))
        self.addCleanup(process.communicate)
        self.addCleanup(self.kill_survivors)
        self.kill_after(1, "run", 1, '"event":"checkpoint"')
        head = ""
        while "restart 1 of 9 in 50 s" not in head:
            head += process.stderr.readline()
        process.send_signal(signal.SIGUSR1)
        error = process.communicate(timeout=LIMIT)[1]
        self.assertEqual(9, process.returncode, error)
        step = int(re.fullmatch(r"stopped .*step (\d+) by SIGUSR1\n", (self.folder / "run/REQUEUE").read_text())[1])
        # A rank may have ended between its last checkpoint and the report of it.
        names = [path.name.removeprefix("step-") for path in (self.folder / "run/checkpoints").glob("step-*")]
        newest = max(int(name) for name in names if name.isdigit())
        self.assertIn(step, (newest, newest - 10))
        run(DTRUN, "-n", "2", "--", *self.command(*flags, "--resume", "auto", steps=newest + 3), cwd=self.folder)
        self.assertEqual([newest], [line["step"] for line in metrics_of(self.folder / "run") if line.get("event") == "resume"])
        self.assertFalse((self.folder / "run/REQUEUE").exists())

    def test_a_run_without_a_name_or_a_checkpoint_begins_again_in_its_folder(self):
        process = self.start_training("--checkpoint-every", "none", steps=600)
        self.kill_after(0, "runs/text-1", 1, '"step":20,')
        error = self.end_of(process)
        self.assertEqual(1, len(lines_naming(error, "dtrain", "--checkpoint-every")), error)
        self.assertEqual(["text-1"], os.listdir(self.folder / "runs"))
        steps = [line["step"] for line in metrics_of(self.folder / "runs/text-1") if "loss" in line]
        self.assertEqual(list(range(1, 601)), steps)

    def test_a_run_of_another_launch_is_still_rejected(self):
        (self.folder / "run").mkdir()
        (self.folder / "run/config.json").write_text('{"provenance": {"launch": "x", "command_line": ["other"]}}')
        restarted = {"TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_RESTART_COUNT": "1"}
        result = run(DTRAIN, *TINY, "--data", "text", "--run-dir", "run", status=2, environment=restarted, cwd=self.folder)
        assert_names(result.stderr, "dtrain: error", "--overwrite")


if __name__ == "__main__":
    main()
