"""dtrun's exit status and final report tell the truth about the ranks."""

import errno
import os
import re
import signal
import socket
import sys

from dtrain_harness import free_port
from dtrun_harness import DtrunTest, children_of, main, number_of_gpus, state_of, wait_until
from messages import assert_names

HANG = "sleep 60"
# Rank 0 blames another and ends; rank 1 fails as soon as it has.
BLAMES = ("case $RANK in 0) echo $$ > pid.new; mv pid.new pid; until [ -e ready ]; do sleep 0.01; done; exit 4;; "
          "1) until [ -e pid ]; do sleep 0.01; done; read pid < pid; : > ready; while kill -0 $pid 2>&-; do :; done; exit 7;; "
          "esac; " + HANG)


def last_line(process):
    return process.err.strip().splitlines()[-1]


class StatusTest(DtrunTest):
    def test_a_rank_killed_by_a_signal_gives_128_and_the_signal_named(self):
        for number, name in ((11, "SIGSEGV"), (6, "SIGABRT"), (15, "SIGTERM")):
            process = self.dtrun(*self.shell(f"[ $RANK = 0 ] && kill -{number} $$; {HANG}"), status=128 + number)
            assert_names(last_line(process), "failed", "rank 0", f"signal {number}", name)

    def test_the_report_quotes_the_culprit_and_lists_the_victims_apart(self):
        text = ('if [ $RANK = 2 ]; then echo early >&2; echo "it is broken" >&2; exit 5; fi; '
                "trap 'exit 4' TERM; sleep 60 & wait")
        process = self.dtrun(*self.shell(text, ranks=4), status=5)
        lines = process.err.splitlines()
        self.assertIn("dtrun:   | early", lines)
        self.assertIn("dtrun:   | it is broken", lines)
        self.assertTrue(lines[-1].endswith("it is broken"), lines[-1])
        self.assertIn(os.uname().nodename, lines[-1])
        victims = [line for line in lines if "result: rank" in line]
        self.assertEqual(1, len(victims))
        self.assertEqual({"0", "1", "3"}, set(re.findall(r"rank (\d)", victims[0])))

    def test_a_rank_that_ends_with_zero_leaves_the_others_running(self):
        process = self.dtrun(*self.shell("[ $RANK = 0 ] || { sleep 0.3; echo done; }"))
        self.assertEqual((0, "[1] done\n"), (process.returncode, process.out))

    def test_the_order_of_deaths_is_the_kernels_even_if_dtrun_was_stopped(self):
        for first, second in ((2, 0), (0, 2), (1, 0)):
            with self.subTest(first=first):
                for name in self.folder.glob("pid*"):
                    name.unlink()
                process = self.start(*self.shell("echo $$ > pid$RANK.new; mv pid$RANK.new pid$RANK; "
                                                 + HANG, ranks=3))
                self.wait_for_files("pid0", "pid1", "pid2")
                (supervisor,) = children_of(process.pid)
                os.kill(supervisor, signal.SIGSTOP)
                wait_until(lambda: state_of(supervisor) == "T", "the supervisor to stop")
                for rank in (first, second):
                    pid = int((self.folder / f"pid{rank}").read_text())
                    os.kill(pid, signal.SIGKILL if rank == first else signal.SIGSEGV)
                    wait_until(lambda: state_of(pid) == "Z", "a rank to die")
                os.kill(supervisor, signal.SIGCONT)
                process.out, process.err = process.communicate(timeout=20)
                self.assertEqual(128 + 9, process.returncode)
                self.assertIn(f"failed: rank {first} ", last_line(process))
                self.assert_nothing_left()

    def test_a_rank_that_ends_late_with_an_error_of_its_own_is_the_culprit(self):
        late = ("import os, signal, sys, time\n"
                "if os.environ['RANK'] == '0':\n"
                "    while not os.path.exists('ready'): time.sleep(0.01)\n"
                "    sys.exit(4)\n"
                "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
                "os.write(int(os.environ['DTRUN_CONTROL_FD']), b'error {told} why\\n')\n"
                "open('ready', 'w').close()\n"
                "time.sleep(0.6)\n"
                "sys.exit(13)")
        for told, status, culprit in ((13, 13, 1), (4, 4, 0)):
            process = self.dtrun("-n", "2", "--abort-grace", "10", "--", sys.executable, "-c", late.format(told=told),
                                 status=status)
            (self.folder / "ready").unlink()
            self.assertIn(f"failed: rank {culprit} ", last_line(process))

    def test_a_caller_that_ignores_sigchld_has_no_effect(self):
        self.dtrun(*self.shell(f"[ $RANK = 1 ] && exit 3; {HANG}"),
                   preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN), status=3)

    def test_ranks_that_saved_and_left_give_9_and_are_not_disturbed(self):
        process = self.dtrun(*self.shell("[ $RANK = 0 ] || sleep 0.3; echo saved; exit 9"), status=9)
        self.assertEqual(["[0] saved", "[1] saved"], sorted(process.out.splitlines()))

    def test_a_rank_that_reports_being_busy_may_exit_late(self):
        nodes = ("--emulate-nodes", "2", "-n", "1")
        for options, first, sign, grace, status in ((("-n", "2"), 0, "busy", "3", 9), (nodes, 0, "busy", "3", 9),
                                                    (nodes, 1, "busy", "3", 9), (("-n", "2"), 0, "progress $i", "0.3", 5)):
            text = f'[ $RANK = {first} ] && exit 9; for i in $(seq 40); do echo "{sign}" >&$DTRUN_CONTROL_FD; sleep 0.1; done; exit 9'
            self.dtrun(*options, "--stop-grace", grace, "--", "bash", "-c", text, status=status)

    def test_a_rank_whose_wait_timed_out_gave_up(self):
        text = ('[ $RANK = 1 ] && exec sleep 60; eval "printf \'error 5 prog: rank 1 did not come\\n\' >&$DTRUN_CONTROL_FD"; '
                "exit 5")
        process = self.dtrun("-n", "2", "--", "bash", "-c", text, status=5)
        self.assertRegex(last_line(process), r"failed: rank 0 \(.*\) .*status 5\) after .*: prog: rank 1 did")


class ToldErrorTest(DtrunTest):
    """Ranks that send their last line over the control descriptor instead of writing it."""

    # Runs before ranks report an error of all ranks: each must report it soon after the first.
    MEET = ": > up$RANK; until set -- up*; [ $# = $WORLD_SIZE ]; do sleep 0.01; done; "

    def tell(self, message, status):
        return f"eval \"printf '{message}\\n' >&$DTRUN_CONTROL_FD\"; exit {status}; "

    def bash(self, text, *options, ranks=3, status=None):
        for path in self.folder.glob("up*"):
            path.unlink()
        return self.dtrun("-n", str(ranks), *options, "--", "bash", "-c", text, status=status)

    def test_an_error_that_concerns_all_ranks_is_one_line_without_a_culprit(self):
        wrong, nan = self.tell("error 2 prog: wrong flag", 2), self.tell("progress 7\\nerror 7 prog: loss nan", 7)
        full, gone = self.tell("refused 2 prog: folder full", 2), self.tell("error 4 prog: a peer is gone", 4)
        for text, ranks, status, line in ((self.MEET + "[ $RANK = 1 ] && sleep 0.1; " + wrong, 3, 2, "wrong flag"), (wrong, 1, 2, "wrong flag"),
                                          (self.MEET + nan, 3, 7, "loss nan"), ("[ $RANK = 0 ] || exec sleep 60; " + full, 3, 2, "folder full"),
                                          # It does not end the rank.
                                          (f"({wrong}); sleep 0.1; exit 0", 2, 0, "wrong flag"), (f"({gone}); sleep 0.1; exit 0", 1, 0, "a peer is gone")):
            with self.subTest(text):
                process = self.bash(text, ranks=ranks)
                self.assertEqual((status, f"prog: {line}\n"), (process.returncode, process.err))

    def test_an_error_of_all_that_names_each_rank_is_one_line(self):
        process = self.bash(self.MEET
                            + self.tell("error 2 prog: WORLD_SIZE says rank $RANK of 3, but another says rank 1 of 12", 2),
                            status=2)
        self.assertRegex(process.err, r"\Aprog: WORLD_SIZE says rank \d of 3, but another says rank 1 of 12\n\Z")

    def test_ranks_that_only_report_anothers_error_before_the_start_add_no_line(self):
        wait = "until [ -e {0} ]; do sleep 0.01; done; "
        process = self.bash("say() { eval \"printf '$1\\n' >&$DTRUN_CONTROL_FD\"; }; "
                            "[ $RANK = 0 ] || { say 'error 4 prog: rank 0 failed'; touch told$RANK; "
                            + wait.format("told0") + "exit 4; }; "
                            + wait.format("told1") + wait.format("told2")
                            + "say 'error 2 prog: folder full'; touch told0; exit 2")
        self.assertEqual((2, "prog: folder full\n"), (process.returncode, process.err))

    def test_if_all_ranks_blame_another_each_blame_is_printed_once(self):
        process = self.bash(self.MEET + "[ $RANK = 2 ] && r=1; " + self.tell("error 4 prog: rank ${r:-2} is gone", 4), status=4)
        self.assertEqual(1, process.err.count("prog: rank 2 is gone"), process.err)
        self.assertEqual(1, process.err.count("prog: rank 1 is gone"), process.err)

    def test_an_error_of_one_rank_is_printed_and_the_rank_named(self):
        for rank in (0, 2):
            process = self.bash(f"[ $RANK = {rank} ] || exec sleep 60; " + self.tell("error 2 prog: my own", 2), status=2)
            lines = process.err.splitlines()
            self.assertEqual(["prog: my own"], lines[:-1])
            self.assertRegex(lines[-1], rf"failed: rank {rank} .*status 2 after .*: prog: my own$")

    def test_an_error_of_one_rank_in_mid_run_ends_the_others(self):
        process = self.bash("[ $RANK = 1 ] || { trap 'exit 4' TERM; sleep 60 & wait; }; "
                            + self.tell("progress 7\\nerror 7 prog: loss nan", 7), status=7)
        self.assertIn("result: rank ", process.err)
        self.assertRegex(last_line(process), "failed: rank 1 .* at step 7: prog: loss nan$")

    def test_different_errors_are_all_printed(self):
        process = self.bash(self.MEET + "sleep 0.0$RANK; " + self.tell("error 3 prog: error of $RANK", 3), ranks=2, status=3)
        self.assertEqual(1, len(re.findall(r"^(?:\[0\] )?prog: error of 0$", process.err, re.MULTILINE)))
        self.assertEqual(1, len(re.findall(r"^(?:\[1\] )?prog: error of 1$", process.err, re.MULTILINE)))

    def test_each_ranks_log_has_its_error(self):
        self.bash(self.MEET + self.tell("error 2 prog: wrong flag", 2), "--log-dir", "logs")
        logs = [path.read_text() for path in (self.folder / "logs").rglob("stderr.log")]
        self.assertEqual(["prog: wrong flag\n"] * 3, logs)


class TimesTest(DtrunTest):
    def test_times_are_readable_and_never_negative(self):
        process = self.dtrun(*self.shell(BLAMES, ranks=3))
        self.assertRegex(process.err, r"rank 0 \(.*status 4, [\d.]+ m?s before\)")
        self.assertRegex(process.err, r"rank 2 \(.*signal 15 \(SIGTERM\), [\d.]+ m?s later\)")
        self.assertRegex(last_line(process), r"status 7 after ([\d.]+ s|\d+ ms)$")


class AbortTest(DtrunTest):
    def test_the_other_ranks_learn_which_rank_failed_and_why(self):
        listen = ("import os, signal, socket\n"
                  "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
                  "line = socket.socket(fileno=int(os.environ['DTRUN_CONTROL_FD']))\n"
                  "open('ready', 'w').close()\n"
                  "print(line.recv(4096).decode(), end='', flush=True)\n"
                  "os._exit(4)\n")
        (self.folder / "listen.py").write_text(listen)
        process = self.dtrun(*self.shell("[ $RANK = 0 ] && exec python3 listen.py; "
                                         "until [ -e ready ]; do sleep 0.01; done; exit 7"), status=7)
        self.assertRegex(process.out, r"\A\[0\] abort 1 .*status 7\n\Z")
        assert_names(process.err, "rank 0", "status 4")


class RefusalTest(DtrunTest):
    def test_a_program_that_cannot_be_executed_gives_12(self):
        (self.folder / "script.py").write_text("print(1)\n")
        self.assertIn("python3", self.refused(12, "-n", "2", "--", "./script.py"))
        (self.folder / "script.py").chmod(0o755)
        self.assertIn("#!", self.refused(12, "-n", "2", "--", "./script.py"))
        self.refused(12, "-n", "2", "--", str(self.folder))

    def test_the_advice_fits_the_reason(self):
        for name, text in (("lost", "#!/no/such/shell\n"), ("busy", "#!/bin/sh\n")):
            (self.folder / name).write_text(text)
            (self.folder / name).chmod(0o755)
        (self.folder / "loop").symlink_to("loop")
        with open(self.folder / "busy", "ab"):
            for name, words in (("lost", "interpreter"), ("busy", "is writing"), ("loop", "symbolic links")):
                error = self.refused(12, "-n", "2", "--", "./" + name)
                self.assertIn(words, error)
                self.assertNotIn("check", error)

    def test_bad_options_give_2_and_name_the_option(self):
        for arguments, words in (
                (("--nproc-per-nod", "2", "--", "true"), "--nproc-per-node"),
                (("--stopgrace", "2", "--", "true"), "--stop-grace"),
                (("-n", "0", "--", "true"), "-n"),
                (("-n", "two", "--", "true"), "'two'"),
                (("-n", "-1", "--", "true"), "'-1'"),
                (("-n", "2"), "-n 2"),
                (("-n",), "-n"),
                (("--nnodes", "2", "--", "true"), "--node-rank"),
                (("--master-port", "70000", "--", "true"), "'70000'"),
                (("--abort-grace", "nan", "--", "true"), "'nan'"),
                (("--stop-grace", "10x", "--", "true"), "'10x'; give a duration: 90s, 10m"),
                (("--stop-grace", "2d", "--", "true"), "from 0 to 86400 s"),
                (("--redirects", "4", "--", "true"), "--redirects"),
                (("--tee", "0:3,1", "--", "true"), "--tee"),
                (("--log-dir", "--tee", "3", "--", "true"), "--log-dir"),
                (("--local-ranks-filter", "0,2", "-n", "2", "--", "true"), "rank 2"),
                (("--log-dir", "/proc/none", "--", "true"), "--log-dir"),
                (("--master-addr", "192.0.2.1", "--", "true"), "192.0.2.1"),
                (("--standalone=foo", "--", "true"), '--standalone: found "foo"'),
                (("--standalone=", "--", "true"), '--standalone: found ""'),
                (("--version=0",), '--version: found "0"'),
                *((("--log-size-limit", size, "--", "true"), f"--log-size-limit: found '{size}'") for size in ("5X", "-1", "many")),
                (("--emulate-nodes", "2", "--master-port", "5000", "--", "true"), "--master-port"),
                (("--standalone", "--nnodes", "2", "--node-rank", "0", "--master-addr", "localhost", "--", "true"), "--nnodes is 2"),
                (("--emulate-nodes", "1", "--", "true"), "from 2"),
        ):
            with self.subTest(arguments=arguments):
                self.assertIn(words, self.refused(2, *arguments))

    def test_refusals_and_notes_say_what_to_do(self):
        for names, arguments in ((("--nnodes", "--node-rank"), ("--node-rank", "1")),
                                 (("--master-port", "127.0.0.1:29500"), ("--master-addr", "127.0.0.1:29500")),
                                 (("--master-addr", "[::1]"), ("--master-addr", "[::1]")),
                                 (("--tee", "rank 7", "2 ranks"), ("-n", "2", "-t", "7:1")),
                                 (("--hang-timeout", "0", "0.1"), ("--hang-timeout", "-1")),
                                 # The message has the spelling that was typed, whatever the program's own flags are.
                                 (("-n", "'two'"), ("-n", "two")), (("-n", "'two'"), ("-ntwo",)),
                                 (("-np", "'two'"), ("-np", "two")),
                                 (("--nproc_per_node", "'two'"), ("--nproc_per_node=two", "--", "true", "-n", "2")),
                                 (("-t", "'9'"), ("-t", "9")), (("-r", "'x'"), ("-r=x",))):
            assert_names(self.refused(2, *arguments, "--", "true"), *names)
        (self.folder / "p.py").touch()
        self.assertIn("try python3 p.py", self.refused(12, "p.py"))
        assert_names(self.dtrun("--rdzv-timeout", "9", "--", "true").err, "note", "--rdzv-timeout")

    def test_times_have_units(self):
        for text in ("90s", "10min", "2h30m", "1:50", "1:50:00", "0-02:00:00", "1e3"):
            options = [word for name in ("--rdzv-timeout", "--heartbeat-timeout", "--hang-timeout", "--abort-grace", "--stop-grace",
                                         "--restart-backoff") for word in (name, text)]
            self.assertEqual(0, self.dtrun(*options, "--", "true").returncode)
        self.assertIn("--hang-timeout", self.refused(2, "--hang-timeout", "20ms", "--", "true"))

    def test_the_last_output_of_a_killed_rank_counts_if_it_reports_an_error(self):
        for words, quoted in (("memory: predicted", False), ("Assertion failed", True)):
            process = self.dtrun(*self.shell(f"echo {words} >&2; kill -SEGV $$", ranks=1))
            self.assertEqual(quoted, words in process.err.splitlines()[-1], process.err)

    def test_gpu_without_a_gpu_is_refused(self):
        if number_of_gpus() == 0:
            self.assertIn("no GPU", self.refused(2, "-n", "gpu", "--", "true"))
        else:
            self.assertEqual(0, self.dtrun("-n", "gpu", "--", "true").returncode)

    def test_help_and_version_go_to_standard_output(self):
        process = self.dtrun("--help")
        self.assertEqual((0, ""), (process.returncode, process.err))
        self.assertIn("--abort-grace", process.out)
        for environment in ({}, {"PET_NNODES": "x"}):
            self.assertRegex(self.dtrun("--version", env=environment, status=0).out, r"^dtrun \d+\.\d+\.\d+\n$")
        for option in ("--help", "--version"):
            with open("/dev/full", "wb") as full:
                process = self.dtrun(option, stdout=full)
            self.assertEqual(2, process.returncode)
            assert_names(process.err, "dtrun: error", os.strerror(errno.ENOSPC))


class PortTest(DtrunTest):
    """A port belongs to one dtrun at a time."""

    def hold(self, *options):
        first = self.start(*options, "--", "sh", "-c",
                           "[ $RANK = 1 ] || { echo $MASTER_PORT > port; touch ready; }; "
                           "until [ -e go ]; do sleep 0.02; done")
        self.wait_for_files("ready")
        return first

    def release(self, first):
        (self.folder / "go").touch()
        first.communicate(timeout=20)
        self.assertEqual(0, first.returncode)

    def names_owner(self, port, address="127.0.0.1", *options):
        second = self.start("--master-port", port, "--master-addr", address, *options, "--", "true")
        _, errors = second.communicate(timeout=20)
        self.assertEqual((11, 1), (second.returncode, errors.count("\n")), errors)
        assert_names(errors, "--master-port", f"port {port}", address)
        return errors

    def test_a_port_that_another_dtrun_uses_gives_11_and_names_it_however_often_one_tries(self):
        port = str(free_port())
        first = self.hold("--master-port", port)
        for _ in range(5):
            self.assertIn(f"another dtrun (pid {first.pid});", self.names_owner(port))
        self.assertIn(f"another dtrun (pid {first.pid});", self.names_owner(port, "localhost"))
        self.release(first)
        self.assertEqual(0, self.dtrun("--master-port", port, "--", "true").returncode)

    def test_the_ranks_port_of_a_job_is_refused_to_jobs_of_one_and_of_several_nodes(self):
        port = str(free_port())
        for options in (("--master-port", port), ("--emulate-nodes", "2", "-n", "1")):
            first = self.hold(*options)
            port = (self.folder / "port").read_text().strip()
            for nodes in ((), ("--nnodes", "2", "--node-rank", "0")):
                self.names_owner(port, "127.0.0.1", *nodes)
            self.release(first)
            for name in ("go", "ready"):
                (self.folder / name).unlink()

    def test_a_port_is_still_rejected_when_the_backlog_of_its_holder_is_full(self):
        port = str(free_port())
        first = self.hold("--master-port", port)
        with self.assertRaises(BlockingIOError):
            for _ in range(100_000):
                with socket.socket(socket.AF_UNIX) as guest:
                    guest.setblocking(False)
                    guest.connect(f"\0dtrun-port-127.0.0.1:{port}")
        self.names_owner(port)
        self.release(first)

    def test_a_port_chosen_by_the_kernel_is_claimed_too(self):
        first = self.hold()
        port = (self.folder / "port").read_text().strip()
        self.assertIn(f"another dtrun (pid {first.pid});", self.names_owner(port))
        self.release(first)

    def test_of_several_concurrent_dtruns_one_gets_the_port(self):
        port = str(free_port())
        everybody = [self.start("--master-port", port, "--", "sh", "-c", "until [ -e go ]; do sleep 0.02; done")
                     for _ in range(6)]
        wait_until(lambda: sum(one.poll() is not None for one in everybody) >= 5, "five to be refused")
        (self.folder / "go").touch()
        for one in everybody:
            one.communicate(timeout=20)
        self.assertEqual([0] + [11] * 5, sorted(one.returncode for one in everybody))


if __name__ == "__main__":
    main()
