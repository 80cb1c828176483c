"""Node 0 restarts a job of several nodes."""

import os
import re
import signal
import time

from dtrun_harness import main, wait_until
from dtrun_nodes_harness import COMM, WAIT, NodesTest, supervisor_of
from messages import assert_names, holds


class Restart(NodesTest):
    AGAIN = ("--max-restarts", "1", "--restart-backoff")

    def test_a_restart_needs_no_log_folder(self):
        text = "[ $RANK = 1 ] && sleep 5; for run in logs/*; do touch $run/attempt_1; done; exit 7"
        launchers = self.nodes(text, *self.AGAIN, "0.05", "--log-dir", "logs")
        self.assertEqual([7, 7], self.ends(*launchers), launchers[0].err + launchers[1].err)
        assert_names(launchers[0].err, "dtrun: warning", re.compile("attempt_1"))

    def test_messages_read_together_with_a_restart_order_are_kept(self):
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

    def test_a_failure_on_any_node_restarts_the_ranks_of_all_nodes(self):
        process = self.emulated("echo $RANK $TORCHELASTIC_RESTART_COUNT $MASTER_PORT; "
                                'test "$RANK$TORCHELASTIC_RESTART_COUNT" != 30 || exit 7', *self.AGAIN, "0.05", status=0)
        lines = [line.split("] ")[1].split() for line in process.out.splitlines()]
        last = [line for line in lines if line[1] == "1"]
        self.assertEqual(sorted(rank for rank, _, _ in last), ["0", "1", "2", "3"])
        self.assertEqual(len({port for _, _, port in last}), 1)
        self.assertEqual(len({port for _, _, port in lines}), 2)
        assert_names(process.err, "restart 1 of 1", "50 ms", "rank 3", "status 7")
        assert_names(process.err, "attempt 1", "status 0")
        assert_names(process.err, "dtrun (node 1)", "restart 1", "rank 3", "status 7")
        assert_names(process.err, "dtrun (node 1)", "status 0", "1 restart")

    def test_node_0_sets_the_number_of_restarts_of_all_nodes(self):
        launchers = [self.node(rank, *options, *self.shell("echo $TORCHELASTIC_MAX_RESTARTS", ranks=1))
                     for rank, options in enumerate((("--max-restarts", "3"), ()))]
        self.assertEqual([0, 0], self.ends(*launchers), launchers[0].err + launchers[1].err)
        self.assertEqual(["3", "3"], [launcher.out.split("] ")[1].strip() for launcher in launchers])

    def fails_and_waits(self):
        launchers = self.nodes('test $RANK = 0 && exec sleep 30; exit 7', *self.AGAIN, "30")
        wait_until(lambda: "restart 1 of 1" in launchers[0].stderr.readline(), "the wait for the restart")
        return launchers

    def test_a_signal_at_any_node_ends_the_back_off(self):
        launchers = self.fails_and_waits()
        launchers[1].send_signal(signal.SIGTERM)
        self.assertEqual(self.ends(*launchers), [7, 7])
        assert_names(launchers[0].err, "not started", "SIGTERM")

    def test_a_stop_in_the_back_off_has_one_status_on_all_nodes(self):
        told = 'printf "requeue-file $PWD/REQUEUE\\ncommitted 5\\n" >&$DTRUN_CONTROL_FD'
        text = f"test $RANK = 0 && exec bash -c '{told}; : > told; sleep 30'; until [ -e told ]; do sleep 0.02; done; exit 7"
        launchers = self.nodes(text, *self.AGAIN, "30")
        wait_until(lambda: "restart 1 of 1" in launchers[0].stderr.readline(), "the wait for the restart")
        launchers[1].send_signal(signal.SIGUSR1)
        self.assertEqual(self.ends(*launchers), [9, 9], launchers[0].err + launchers[1].err)
        assert_names((self.folder / "REQUEUE").read_text(), "step 5", "SIGUSR1")

    def slowly(self, *calls):
        """Runs a dtrun in which each process's first call of this kind takes longer than --heartbeat-timeout."""
        names = ",".join(calls)
        self.limit = 60
        return ("strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={names}", "-e", f"inject={names}:delay_enter=5000000:when=1")

    def test_a_slow_disk_of_log_folders_loses_no_node(self):
        text = "[ $RANK$TORCHELASTIC_RESTART_COUNT = 10 ] && exit 7; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || sleep 100"
        launchers = [self.node(rank, *self.AGAIN, "0.05", "--heartbeat-timeout", "2", "--log-dir", f"logs{rank}",
                               *self.shell(text, ranks=1), under=under) for rank, under in enumerate((self.slowly("mkdir"), ()))]
        self.assertEqual([0, 0], self.ends(*launchers), launchers[0].err + launchers[1].err)
        self.assertEqual(1, launchers[0].err.count("restart 1 of 1"), launchers[0].err)

    def test_a_slow_disk_of_the_requeue_file_loses_no_node(self):
        told = 'printf "requeue-file $PWD/REQUEUE\ncommitted 5\n" >&$DTRUN_CONTROL_FD'
        text = f"test $RANK = 0 && exec bash -c '{told}; : > told; sleep 30'; until [ -e told ]; do sleep 0.02; done; exit 7"
        launchers = [self.node(rank, *self.AGAIN, "30", "--heartbeat-timeout", "2", *self.shell(text, ranks=1), under=under)
                     for rank, under in enumerate((self.slowly("fsync"), ()))]
        wait_until(lambda: "restart 1 of 1" in launchers[0].stderr.readline(), "the wait for the restart")
        launchers[1].send_signal(signal.SIGUSR1)
        self.assertEqual(self.ends(*launchers), [9, 9], launchers[0].err + launchers[1].err)
        self.assertTrue((self.folder / "REQUEUE").exists())

    def test_a_lost_node_ends_the_back_off(self):
        launchers = self.fails_and_waits()
        os.kill(supervisor_of(launchers[1]), signal.SIGKILL)
        self.assertEqual(self.ends(*launchers)[0], 7)
        assert_names(launchers[0].err, "not started", "node 1")

    def test_a_job_that_lost_a_node_is_not_restarted(self):
        launchers = self.nodes(WAIT, *self.AGAIN, "0.05")
        self.wait_for_files("here0", "here1")
        os.kill(supervisor_of(launchers[1]), signal.SIGKILL)
        self.assertEqual(self.ends(*launchers)[0], COMM)
        assert_names(launchers[0].err, "not started", "nodes")

    def test_a_job_that_lost_a_node_just_after_a_rank_failed_is_not_restarted(self):
        launchers = self.nodes("trap '' TERM; : > here$RANK; if [ $RANK = 0 ]; then until [ -e here1 ]; do :; done; exit 7; fi; "
                               "while :; do sleep 0.05; done", *self.AGAIN, "0.05", "--abort-grace", "10")
        wait_until(lambda: holds(launchers[0].stderr.readline(), "status 7"), "the order to end")
        os.kill(supervisor_of(launchers[1]), signal.SIGKILL)
        self.assertEqual(self.ends(*launchers)[0], 7)
        assert_names(launchers[0].err, "not started", "nodes")

    def test_a_node_lost_during_the_end_is_the_culprit_if_a_rank_only_blames_another(self):
        """As after the end of large ranks, whose dtrun closes its connection last."""
        launchers = self.nodes("trap '' TERM; : > here$RANK; [ $RANK = 0 ] && { until [ -e here1 ]; do :; done; exit 4; }; "
                               "while :; do sleep 0.05; done", *self.AGAIN, "0.05", "--abort-grace", "10")
        wait_until(lambda: holds(launchers[0].stderr.readline(), "status 4"), "the order to end")
        os.kill(supervisor_of(launchers[1]), signal.SIGKILL)
        self.assertEqual(self.ends(*launchers)[0], COMM)
        blamed, failed, ended = launchers[0].err.splitlines()[-3:]
        assert_names(blamed, "dtrun", "rank 0", "status 4")
        assert_names(failed, "failed", "node 1", "rank 1")
        assert_names(ended, "dtrun: not started")

    def test_a_restart_on_another_node_needs_no_log_folder(self):
        text = "[ $RANK = 0 ] && exec sleep 30; for run in logs1/*; do touch $run/attempt_1; done; exit 7"
        launchers = [self.node(rank, "--log-dir", f"logs{rank}", *self.AGAIN, "0.05", *self.shell(text, ranks=1))
                     for rank in range(2)]
        self.assertEqual([7, 7], self.ends(*launchers), launchers[0].err + launchers[1].err)
        assert_names(launchers[1].err, "dtrun (node 1)", "warning", re.compile("attempt_1"))


if __name__ == "__main__":
    main()
