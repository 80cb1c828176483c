"""A job of several nodes is started again by node 0's word."""

import os
import pathlib
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from dtrun_harness import main, wait_until  # noqa: E402
from dtrun_nodes_harness import COMM, WAIT, NodesTest, supervisor_of  # noqa: E402


class Restart(NodesTest):
    AGAIN = ("--max-restarts", "1", "--restart-backoff")

    def test_a_restart_needs_no_log_folder(self):
        text = "[ $RANK = 1 ] && sleep 5; for run in logs/*; do touch $run/attempt_1; done; exit 7"
        launchers = self.nodes(text, *self.AGAIN, "0.05", "--log-dir", "logs")
        self.assertEqual([7, 7], self.ends(*launchers), launchers[0].err + launchers[1].err)
        self.assertRegex(launchers[0].err, r"dtrun: warning: cannot create .*attempt_1.*; attempt 1 has no logs\n")

    def test_what_follows_an_order_to_restart_in_one_read_is_not_lost(self):
        text = "echo > here$RANK-$TORCHELASTIC_RESTART_COUNT; [ $RANK$TORCHELASTIC_RESTART_COUNT = 00 ] && exit 7; sleep 30"
        launchers = self.nodes(text, *self.AGAIN, "0.6")
        first, second = (supervisor_of(launcher) for launcher in launchers)
        wait_until(lambda: "restart 1 of 1" in launchers[0].stderr.readline(), "the end of the first attempt")
        time.sleep(0.2)  # node 1 waits for an order now
        os.kill(second, signal.SIGSTOP)
        self.wait_for_files("here0-1")
        os.kill(first, signal.SIGKILL)
        launchers[0].wait()
        begin = time.monotonic()
        os.kill(second, signal.SIGCONT)
        self.assertEqual([137, COMM], self.ends(*launchers))
        self.assertLess(time.monotonic() - begin, 8)

    def test_a_failure_on_any_node_starts_the_ranks_of_all_again(self):
        process = self.emulated("echo $RANK $TORCHELASTIC_RESTART_COUNT $MASTER_PORT; "
                                'test "$RANK$TORCHELASTIC_RESTART_COUNT" != 30 || exit 7', *self.AGAIN, "0.05")
        self.assertEqual(process.returncode, 0, process.err)
        lines = [line.split("] ")[1].split() for line in process.out.splitlines()]
        last = [line for line in lines if line[1] == "1"]
        self.assertEqual(sorted(rank for rank, _, _ in last), ["0", "1", "2", "3"])
        self.assertEqual(len({port for _, _, port in last}), 1)
        self.assertEqual(len({port for _, _, port in lines}), 2)
        self.assertIn("dtrun: restart 1 of 1 in 50 ms: rank 3 exited with status 7", process.err)
        self.assertRegex(process.err, r"dtrun:   attempt 1: ended with status 0")
        self.assertRegex(process.err, r"dtrun \(node 1\): restart 1: rank 3 exited with status 7")
        self.assertIn("dtrun (node 1): the job ended with status 0 after 1 restart\n", process.err)

    def test_the_number_of_restarts_is_node_0s_on_all_nodes(self):
        launchers = [self.node(rank, *options, *self.shell("echo $TORCHELASTIC_MAX_RESTARTS", ranks=1))
                     for rank, options in enumerate((("--max-restarts", "3"), ()))]
        self.assertEqual([0, 0], self.ends(*launchers), launchers[0].err + launchers[1].err)
        self.assertEqual(["3", "3"], [launcher.out.split("] ")[1].strip() for launcher in launchers])

    def fails_and_waits(self):
        launchers = self.nodes('test $RANK = 0 && exec sleep 30; exit 7', *self.AGAIN, "30")
        wait_until(lambda: "restart 1 of 1" in launchers[0].stderr.readline(), "the wait for the restart")
        return launchers

    def test_a_signal_at_any_node_ends_the_wait(self):
        launchers = self.fails_and_waits()
        launchers[1].send_signal(signal.SIGTERM)
        self.assertEqual(self.ends(*launchers), [7, 7])
        self.assertIn("not started again: SIGTERM asked the job to stop", launchers[0].err)

    def test_a_stop_in_the_wait_has_one_status_on_all_nodes(self):
        told = 'printf "requeue-file $PWD/REQUEUE\\ncommitted 5\\n" >&$DTRUN_CONTROL_FD'
        text = f"test $RANK = 0 && exec bash -c '{told}; : > told; sleep 30'; until [ -e told ]; do sleep 0.02; done; exit 7"
        launchers = self.nodes(text, *self.AGAIN, "30")
        wait_until(lambda: "restart 1 of 1" in launchers[0].stderr.readline(), "the wait for the restart")
        launchers[1].send_signal(signal.SIGUSR1)
        self.assertEqual(self.ends(*launchers), [9, 9], launchers[0].err + launchers[1].err)
        self.assertEqual("stopped after step 5 by SIGUSR1\n", (self.folder / "REQUEUE").read_text())

    def slowly(self, *calls):
        """Runs a dtrun whose processes' first such calls take longer than --heartbeat-timeout."""
        names = ",".join(calls)
        self.limit = 60
        return ("strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={names}", "-e", f"inject={names}:delay_enter=5000000:when=1")

    def test_a_slow_disk_of_log_folders_loses_no_node(self):
        text = "[ $RANK$TORCHELASTIC_RESTART_COUNT = 10 ] && exit 7; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || sleep 100"
        launchers = [self.node(rank, *self.AGAIN, "0.05", "--heartbeat-timeout", "2", "--log-dir", f"logs{rank}",
                               *self.shell(text, ranks=1), under=under) for rank, under in enumerate((self.slowly("mkdir"), ()))]
        self.assertEqual([0, 0], self.ends(*launchers), launchers[0].err + launchers[1].err)
        self.assertEqual(1, launchers[0].err.count("restart 1 of 1"), launchers[0].err)

    def test_a_slow_disk_of_the_file_that_asks_for_another_start_loses_no_node(self):
        told = 'printf "requeue-file $PWD/REQUEUE\ncommitted 5\n" >&$DTRUN_CONTROL_FD'
        text = f"test $RANK = 0 && exec bash -c '{told}; : > told; sleep 30'; until [ -e told ]; do sleep 0.02; done; exit 7"
        launchers = [self.node(rank, *self.AGAIN, "30", "--heartbeat-timeout", "2", *self.shell(text, ranks=1), under=under)
                     for rank, under in enumerate((self.slowly("fsync"), ()))]
        wait_until(lambda: "restart 1 of 1" in launchers[0].stderr.readline(), "the wait for the restart")
        launchers[1].send_signal(signal.SIGUSR1)
        self.assertEqual(self.ends(*launchers), [9, 9], launchers[0].err + launchers[1].err)
        self.assertTrue((self.folder / "REQUEUE").exists())

    def test_a_lost_node_ends_the_wait(self):
        launchers = self.fails_and_waits()
        os.kill(supervisor_of(launchers[1]), signal.SIGKILL)
        self.assertEqual(self.ends(*launchers)[0], 7)
        self.assertIn("not started again: node 1 is lost", launchers[0].err)

    def test_a_job_that_lost_a_node_is_not_started_again(self):
        launchers = self.nodes(WAIT, *self.AGAIN, "0.05")
        self.wait_for_files("here0", "here1")
        os.kill(supervisor_of(launchers[1]), signal.SIGKILL)
        self.assertEqual(self.ends(*launchers)[0], COMM)
        self.assertIn("not started again: the job has fewer nodes now", launchers[0].err)

    def test_neither_is_one_that_lost_a_node_just_after_a_rank_had_failed(self):
        launchers = self.nodes("trap '' TERM; : > here$RANK; if [ $RANK = 0 ]; then until [ -e here1 ]; do :; done; exit 7; fi; "
                               "while :; do sleep 0.05; done", *self.AGAIN, "0.05", "--abort-grace", "10")
        wait_until(lambda: "ending the others" in launchers[0].stderr.readline(), "the order to end")
        os.kill(supervisor_of(launchers[1]), signal.SIGKILL)
        self.assertEqual(self.ends(*launchers)[0], 7)
        self.assertIn("not started again: the job has fewer nodes now", launchers[0].err)

    def test_a_node_lost_while_the_ranks_end_is_to_blame_where_a_rank_only_says_that_another_failed(self):
        """As after the end of big ranks, whose dtrun closes its connection last."""
        launchers = self.nodes("trap '' TERM; : > here$RANK; [ $RANK = 0 ] && { until [ -e here1 ]; do :; done; exit 4; }; "
                               "while :; do sleep 0.05; done", *self.AGAIN, "0.05", "--abort-grace", "10")
        wait_until(lambda: "ending the others" in launchers[0].stderr.readline(), "the order to end")
        os.kill(supervisor_of(launchers[1]), signal.SIGKILL)
        self.assertEqual(self.ends(*launchers)[0], COMM)
        self.assertRegex(launchers[0].err, r"dtrun: ended as a result: rank 0 \(exited with status 4, .*\n"
                                           r"dtrun: failed: node 1 \(.*\) with rank 1 closed its connection: .*\n"
                                           r"dtrun: not started again: the job has fewer nodes now\n$")

    def test_nor_does_another_node(self):
        text = "[ $RANK = 0 ] && exec sleep 30; for run in logs1/*; do touch $run/attempt_1; done; exit 7"
        launchers = [self.node(rank, "--log-dir", f"logs{rank}", *self.AGAIN, "0.05", *self.shell(text, ranks=1))
                     for rank in range(2)]
        self.assertEqual([7, 7], self.ends(*launchers), launchers[0].err + launchers[1].err)
        self.assertRegex(launchers[1].err, r"dtrun \(node 1\): warning: cannot create .*attempt_1.*; attempt 1 has no logs\n")


if __name__ == "__main__":
    main()
