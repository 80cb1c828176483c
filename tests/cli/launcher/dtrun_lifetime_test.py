"""No process outlives dtrun, and all end within their limits."""

import contextlib
import os
import pty
import select
import signal
import subprocess
import time

from dtrun_harness import DTRUN, DtrunTest, LIMIT, children_of, main, state_of, wait_until
from messages import assert_names

# Starts a distant grandchild that has left the process group and session and ignores all signals that it can.
GRANDCHILD = "setsid sh -c 'trap \"\" TERM HUP INT; touch grand$RANK; sleep 60; :' & "
IGNORE = "trap '' TERM; touch ready$RANK; while :; do sleep 0.05; done"
READY = ": > ready$RANK; "  # needs no extra process, which a signal to the group would kill


class DeathTest(DtrunTest):
    def run_until_ready(self, text, *options, ranks=2, **more):
        process = self.start(*self.shell(text, *options, ranks=ranks), **more)
        self.wait_for_files(*[f"ready{rank}" for rank in range(ranks)])
        return process

    def end(self, process):
        process.out, process.err = process.communicate(timeout=LIMIT)
        return process.returncode

    def test_a_rank_that_ignores_sigterm_is_killed_after_the_grace(self):
        process = self.dtrun(*self.shell(f"[ $RANK = 1 ] && {{ until [ -e ready0 ]; do sleep 0.01; "
                                         f"done; exit 3; }}; {IGNORE}", "--abort-grace", "0.3"), status=3)
        assert_names(process.err, "rank 0", "signal 9")

    def test_a_rank_may_use_its_grace(self):
        text = ("[ $RANK = 1 ] && { until [ -e ready0 ]; do sleep 0.01; done; exit 3; }; "
                "trap 'sleep 0.2; echo cleaned; exit 4' TERM; touch ready0; "
                "while :; do sleep 0.02; done")
        process = self.dtrun(*self.shell(text))
        self.assertEqual((3, "[0] cleaned\n"), (process.returncode, process.out))

    def test_the_child_of_a_shell_gets_sigterm_too(self):
        text = ("[ $RANK = 1 ] && { until [ -e ready0 ]; do sleep 0.01; done; exit 3; }; "
                "trap : TERM; sh -c \"trap 'echo cleaned; exit 4' TERM; touch ready0; "
                "while :; do sleep 0.02; done\"; exit 4")
        process = self.dtrun(*self.shell(text))
        self.assertEqual((3, "[0] cleaned\n"), (process.returncode, process.out))

    def test_stopped_ranks_are_woken_so_that_they_can_end_in_order(self):
        process = self.run_until_ready("trap 'echo cleaned; exit 4' TERM; " + READY +
                                       "while :; do sleep 0.02; done")
        (supervisor,) = children_of(process.pid)
        os.kill(supervisor, signal.SIGSTOP)
        for pid in children_of(supervisor):
            os.kill(pid, signal.SIGSTOP)
        os.kill(supervisor, signal.SIGCONT)
        self.assertEqual(5, self.end(process))
        self.assertEqual(["[0] cleaned", "[1] cleaned"], sorted(process.out.splitlines()))
        self.assert_nothing_left()

    def test_grandchildren_end_with_a_failed_job(self):
        self.dtrun(*self.shell(GRANDCHILD + "[ $RANK = 1 ] || exec sleep 60; "
                               "until [ -e grand0 -a -e grand1 ]; do sleep 0.01; done; "
                               "exit 3"), status=3)

    def test_grandchildren_end_with_a_successful_job(self):
        self.dtrun(*self.shell(GRANDCHILD + "until [ -e grand$RANK ]; do sleep 0.01; done",
                               "--abort-grace", "0.2"), status=0)

    def test_a_helper_may_finish_its_work_after_a_clean_end(self):
        for _ in range(5):  # it has a fraction of a second, which may not suffice on a busy machine
            process = self.dtrun(*self.shell("(sleep 0.01; echo written) & exit 0"))
            if sorted(process.out.splitlines()) == ["[0] written", "[1] written"]:
                break
        else:
            self.fail(process.out)

    def test_nothing_outlives_a_killed_dtrun_supervisor_or_process_group(self):
        for killed, status in (("dtrun", -9), ("supervisor", 137), ("group", -9)):
            with self.subTest(killed):
                process = self.run_until_ready(GRANDCHILD + IGNORE, start_new_session=True)
                self.wait_for_files("grand0", "grand1")
                self.assertGreaterEqual(len(self.marked()), 6)  # the scan of /proc finds them
                (supervisor,) = children_of(process.pid)
                {"dtrun": process.kill, "supervisor": lambda: os.kill(supervisor, signal.SIGKILL),
                 "group": lambda: os.killpg(process.pid, signal.SIGKILL)}[killed]()
                self.assertEqual(status, self.end(process))
                self.assert_nothing_left(limit=3)
                if killed != "group":
                    assert_names(process.err, "dtrun", "killed" if killed == "dtrun" else "signal 9")
                for name in ("ready0", "ready1", "grand0", "grand1"):
                    (self.folder / name).unlink()

    def test_ranks_are_killed_before_all_processes_of_the_machine_are_looked_at(self):
        job = subprocess.Popen(["strace", "-f", "-qq", "-o", "trace", "-e", "trace=kill,openat", DTRUN,
                                *self.shell(": > here$RANK; exec sleep 30")], cwd=self.folder, env=self.environment())
        self.wait_for_files("here0", "here1")
        os.kill(children_of(job.pid)[0], signal.SIGKILL)
        job.wait(timeout=20)
        lines = (self.folder / "trace").read_text().splitlines()
        lines = lines[max(number for number, line in enumerate(lines) if "here" in line):]
        first = {what: next(number for number, line in enumerate(lines) if what in line)
                 for what in (" kill(", '"/proc/1/stat"')}
        self.assertLess(first[" kill("], first['"/proc/1/stat"'], lines)

    def test_no_rank_outlives_both_processes_of_dtrun(self):
        process = self.run_until_ready(IGNORE)
        (supervisor,) = children_of(process.pid)
        ranks = children_of(supervisor)
        self.assertEqual(2, len(ranks))
        os.kill(supervisor, signal.SIGKILL)
        process.send_signal(signal.SIGKILL)
        process.wait(LIMIT)
        process.stdout.close()
        process.stderr.close()
        wait_until(lambda: not set(ranks) & set(self.marked()), "the ranks to be killed", limit=3)


class StopTest(DtrunTest):
    run_until_ready = DeathTest.run_until_ready
    end = DeathTest.end

    def test_sigterm_lets_the_ranks_save(self):
        text = f"trap 'sleep 0.1; echo saved; exit 9' TERM; {READY} while :; do sleep 0.02; done"
        for sent in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            process = self.run_until_ready(text)
            process.send_signal(sent)
            self.assertEqual(9, self.end(process))
            self.assertEqual(["[0] saved", "[1] saved"], sorted(process.out.splitlines()))
            self.assert_nothing_left()
            for rank in (0, 1):
                (self.folder / f"ready{rank}").unlink()

    def test_ranks_are_killed_after_the_stop_grace(self):
        process = self.run_until_ready(IGNORE, "--stop-grace", "200ms")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(143, self.end(process))
        assert_names(process.err, "--stop-grace")
        self.assertNotIn("Ctrl-C", process.err)
        assert_names(process.err, "signal 9")
        self.assert_nothing_left()

    def test_a_second_sigterm_does_not_cut_the_saving_short(self):
        text = f"trap 'sleep 0.3; echo saved; exit 9' TERM; {READY} while :; do sleep 0.02; done"
        process = self.run_until_ready(text)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(9, self.end(process))
        self.assertEqual(2, process.out.count("saved"))

    def test_one_ctrl_c_after_another_request_does_not_cut_the_saving_short(self):
        text = (f"trap ': > told$RANK; until [ -e go ]; do sleep 0.02; done; exit 9' TERM; {READY} while :; do sleep 0.02; done")
        one, two = (2, ()), (1, ("--emulate-nodes", "2"))  # two ranks each
        for sent, interrupts, status, (ranks, nodes) in ((signal.SIGTERM, 1, 9, one), (signal.SIGHUP, 1, 9, one),
                                                         (signal.SIGTERM, 2, 143, one), (signal.SIGTERM, 1, 9, two),
                                                         (signal.SIGTERM, 2, 143, two)):
            with self.subTest(sent.name, interrupts=interrupts, nodes=nodes):
                process = self.start(*self.shell(text, *nodes, ranks=ranks))
                self.wait_for_files("ready0", "ready1")
                process.send_signal(sent)
                self.wait_for_files("told0", "told1")
                process.send_signal(signal.SIGINT)
                time.sleep(0.3)
                self.assertIsNone(process.poll())
                if interrupts == 2:
                    process.send_signal(signal.SIGINT)
                else:
                    (self.folder / "go").touch()
                self.assertEqual(status, self.end(process), process.err)
                self.assert_nothing_left()
                for name in ("go", "ready0", "ready1", "told0", "told1"):
                    (self.folder / name).unlink(missing_ok=True)

    def test_user_signals_are_passed_on(self):
        text = (f"trap 'echo one; n=1' USR1; trap 'echo two; exit 0' USR2; {READY} "
                "while :; do sleep 0.02; done")
        process = self.run_until_ready(text)
        process.send_signal(signal.SIGUSR1)
        time.sleep(0.1)
        process.send_signal(signal.SIGUSR2)
        self.assertEqual(0, self.end(process))
        self.assertEqual(["[0] one", "[0] two", "[1] one", "[1] two"],
                         sorted(process.out.splitlines()))

    def test_under_nohup_a_hangup_has_no_effect(self):
        process = self.run_until_ready(READY + "until [ -e go ]; do sleep 0.02; done",
                                       preexec_fn=lambda: signal.signal(signal.SIGHUP,
                                                                        signal.SIG_IGN))
        process.send_signal(signal.SIGHUP)
        time.sleep(0.1)
        (self.folder / "go").touch()
        self.assertEqual(0, self.end(process))


class WrapperTest(DtrunTest):
    """Programs that a shell starts as children, without exec: `bash -c 'prog; x'`."""

    run_until_ready = DeathTest.run_until_ready
    end = DeathTest.end
    SAVER = ("sh -c 'trap \"sleep 0.6; touch saved$RANK; exit {status}\" TERM; touch ready$RANK; "
             "while :; do sleep 0.02; done'; echo not reached")

    def stop(self, text, sent=signal.SIGTERM):
        # It saves for longer than the orphans of a successful job may run.
        process = self.run_until_ready(text, "--abort-grace", "0.1")
        process.send_signal(sent)
        status = self.end(process)
        self.assert_nothing_left()
        self.assertNotIn("not reached", process.out)
        return status, process.err

    def test_the_child_of_a_shell_saves_and_its_status_counts(self):
        status, err = self.stop(self.SAVER.format(status=9))
        self.assertEqual(9, status, err)
        self.assertTrue((self.folder / "saved0").exists() and (self.folder / "saved1").exists())
        assert_names(err, "rank 0", "status 9")

    def test_the_child_of_a_shell_that_fails_to_save_fails_the_job(self):
        text = self.SAVER.format(status=6)
        status, err = self.stop(text, signal.SIGINT)
        self.assertEqual(130, status)
        assert_names(err, "rank 0", "status 6")

    def test_the_end_of_a_helper_hides_no_failure(self):
        helper = "sh -c 'trap \"exit 0\" TERM; while :; do sleep 0.02; done' & "
        text = helper + self.SAVER.format(status=9)
        self.assertEqual(9, self.stop(text)[0])

    def test_programs_that_left_the_process_group_get_the_grace_too(self):
        text = "setsid " + self.SAVER.format(status=0)
        self.assertEqual(143, self.stop(text)[0])
        self.assertTrue((self.folder / "saved0").exists() and (self.folder / "saved1").exists())

    def test_the_time_in_which_the_job_is_suspended_does_not_count(self):
        text = ("trap 'touch told$RANK; until [ -e go ]; do sleep 0.02; done; exit 9' TERM; touch ready$RANK; "
                "while :; do sleep 0.02; done")
        process = self.run_until_ready(text, "--stop-grace", "5")
        process.send_signal(signal.SIGTERM)
        self.wait_for_files("told0", "told1")
        for number, pause in ((signal.SIGSTOP, 6), (signal.SIGCONT, 0.3)):
            for pid in self.marked():  # dtrun first
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            time.sleep(pause)
        (self.folder / "go").touch()
        self.assertEqual(9, self.end(process), process.err)

    def test_ranks_that_report_being_busy_get_more_time(self):
        for options, ranks in (((), 2), (("--emulate-nodes", "2"), 4)):
            with self.subTest(options=options):
                text = ("trap 'for i in $(seq 40); do echo busy >&$DTRUN_CONTROL_FD; sleep 0.1; done; exit 9' TERM; touch ready$RANK; "
                        "while :; do sleep 0.02; done")
                process = self.start("-n", "2", *options, "--stop-grace", "3", "--", "bash", "-c", text)
                self.wait_for_files(*[f"ready{rank}" for rank in range(ranks)])
                process.send_signal(signal.SIGTERM)
                self.assertEqual(9, self.end(process), process.err)
                for rank in range(ranks):
                    (self.folder / f"ready{rank}").unlink()

    def test_user_signals_reach_the_child_of_a_shell_but_not_the_shell(self):
        text = ("sh -c 'trap \"echo got; exit 0\" USR1; touch ready$RANK; while :; do sleep 0.02; done'; "
                "echo after")
        process = self.run_until_ready(text)
        process.send_signal(signal.SIGUSR1)
        self.assertEqual(0, self.end(process), process.err)
        self.assertEqual(["[0] after", "[0] got", "[1] after", "[1] got"],
                         sorted(process.out.splitlines()))


class ZombieTest(DtrunTest):
    def test_an_orphan_that_ends_with_its_rank_does_not_delay_a_clean_end(self):
        # The supervisor finds both exits at once: that of the rank must not hide that of its orphan.
        text = ("(until [ -e go ]; do sleep 0.02; done) & echo $! > orphan$RANK.new; "
                "mv orphan$RANK.new orphan$RANK; exit 0")
        hold = "; until [ -e exit ]; do sleep 0.02; done; exit 0"
        process = self.start(*self.shell("sh -c '" + text + "'" + hold, "--abort-grace", "1000"))
        self.wait_for_files("orphan0", "orphan1")
        (supervisor,) = children_of(process.pid)[:1]
        ranks = children_of(supervisor)
        os.kill(supervisor, signal.SIGSTOP)
        wait_until(lambda: state_of(supervisor) == "T", "the supervisor to stop")
        (self.folder / "exit").touch()
        (self.folder / "go").touch()
        for pid in ranks:
            wait_until(lambda: state_of(pid) == "Z", "all below the supervisor to end")
        os.kill(supervisor, signal.SIGCONT)
        process.communicate(timeout=LIMIT)
        self.assertEqual(0, process.returncode)
        self.assert_nothing_left()

    def test_as_process_1_of_a_container_dtrun_reaps_all_orphans(self):
        unshare = ["unshare", "--pid", "--fork", "--mount-proc"]
        if subprocess.run([*unshare, "true"], stderr=subprocess.DEVNULL).returncode != 0:
            self.skipTest("needs namespaces: of process ids")
        rank = ("touch ready; until [ -e looked ]; do sleep 0.02; done")
        inside = (f"cd {self.folder}; until [ -e ready ]; do sleep 0.02; done; "
                  "sh -c 'sh -c \"exit 0\" & exit 0'; sleep 0.3; n=0; "  # other zombies are reaped soon
                  "while grep -ls '^State:.Z' /proc/[0-9]*/status > zombies; [ -s zombies ] && [ $n -lt 100 ]; do "
                  "sleep 0.05; n=$((n + 1)); done; touch looked")
        process = subprocess.Popen([*unshare, DTRUN, "-n", "1", "--", "sh", "-c", rank], cwd=self.folder,
                                   env=self.environment())
        self.wait_for_files("ready")
        first = wait_until(lambda: children_of(process.pid), "the container")[0]
        # Another program of the container, as by docker exec: its orphans go to process 1. Once it has looked the
        # container may end before it does, which kills it.
        subprocess.run(["nsenter", "-t", str(first), "-p", "-m", "--root", "sh", "-c", inside], cwd=self.folder,
                       check=False, timeout=LIMIT)
        self.assertEqual(0, process.wait(LIMIT))
        self.assertEqual("", (self.folder / "zombies").read_text())
        self.assert_nothing_left()


class TerminalStopTest(DtrunTest):
    def start_on_terminal(self, text, *options):
        """dtrun as the foreground of a terminal of its own, where typing \\x03 is Ctrl-C."""
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(self.folder)
            os.execve(DTRUN, [DTRUN, *self.shell(text, *options)], self.environment())
        self.addCleanup(os.close, terminal)
        self.wait_for_files("ready0", "ready1")
        return pid, terminal

    def end(self, pid, terminal):
        output = b""
        while select.select([terminal], [], [], LIMIT)[0]:
            try:
                piece = os.read(terminal, 4096)
            except OSError:
                break
            if not piece:
                break
            output += piece
        wait_until(lambda: state_of(pid) == "Z", "dtrun to end")
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self.assert_nothing_left()
        return status, output.decode()

    def test_ctrl_c_reaches_each_rank_once_as_sigterm(self):
        text = (f"trap 'echo term; : > term$RANK' TERM; trap 'echo int' INT; {READY} "
                "until [ -e go ]; do sleep 0.02; done; exit 9")
        pid, terminal = self.start_on_terminal(text)
        os.write(terminal, b"\x03")
        self.wait_for_files("term0", "term1")
        (self.folder / "go").touch()
        status, output = self.end(pid, terminal)
        self.assertEqual(9, status)
        self.assertEqual((2, 0), (output.count("] term"), output.count("] int")))

    def test_a_second_ctrl_c_kills_at_once(self):
        pid, terminal = self.start_on_terminal(IGNORE, "--stop-grace", "1000")
        os.write(terminal, b"\x03")
        seen = b""
        while b"stopping because of SIGINT" not in seen:  # sent earlier, both signals would merge into one
            seen += os.read(terminal, 4096)
        os.write(terminal, b"\x03")
        status, output = self.end(pid, terminal)
        self.assertEqual(130, status)
        assert_names(output, "rank 0", "signal 9")


if __name__ == "__main__":
    main()
