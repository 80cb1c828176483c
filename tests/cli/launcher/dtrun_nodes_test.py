"""dtrun over several nodes: one job with one end and one status, whichever node or rank fails."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import struct
import subprocess
import time

from dtrain_harness import free_port
from dtrun_harness import DTRUN, LIMIT, main, program_of, variable_of, wait_until
from dtrun_nodes_harness import (
    RENDEZVOUS, PORT, USAGE, COMM, TIMEOUT, SPAWN, SAVED, SECRET, WAIT, text_field, supervisor_of, NodesTest)
from messages import assert_names


class Start(NodesTest):
    def test_each_rank_gets_its_rank_and_node(self):
        text = ('echo "$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE" '
                '"$MASTER_ADDR $MASTER_PORT $DTRAIN_JOB_TOKEN $TORCHELASTIC_RUN_ID $DTRUN_STORE_PORT ${DTRUN_STORE_FD-none}" '
                "${DTRUN_STORE_LISTENER_FD-none}")
        process = self.emulated(text, status=0)
        self.assertEqual(process.err, "")
        found = {}
        for line in process.out.splitlines():
            node, rank, words = re.fullmatch(r"\[node(\d):(\d)\] (.*)", line).groups()
            found[int(rank)] = (int(node), words.split())
        self.assertEqual(sorted(found), [0, 1, 2, 3])
        for rank, (node, words) in found.items():
            self.assertEqual(words[:6], [str(rank), str(rank % 2), "4", "2", str(node), "2"])
            self.assertEqual((node, words[6], words[11]), (rank // 2, "127.0.0.1", "none"))
            self.assertEqual(words[7:11], found[0][1][7:11])
            self.assertEqual(words[12] == "none", rank > 0)
        self.assertGreaterEqual(len(found[0][1][8]), 32)

    def test_nodes_may_have_different_numbers_of_ranks(self):
        launchers = self.nodes("echo $RANK $LOCAL_RANK $LOCAL_WORLD_SIZE $WORLD_SIZE $GROUP_RANK", ranks=(1, 3, 2))
        self.assertEqual(self.ends(*launchers), [0, 0, 0], launchers[0].err)
        lines = sorted(line.split("] ")[1] for each in launchers for line in each.out.splitlines())
        self.assertEqual(lines, ["0 0 1 6 0", "1 0 3 6 1", "2 1 3 6 1", "3 2 3 6 1", "4 0 2 6 2", "5 1 2 6 2"])
        self.assertTrue(launchers[1].out.startswith(f"[{socket.gethostname()}:"), launchers[1].out)

    def test_lines_of_emulated_nodes_are_not_interleaved(self):
        process = self.emulated("seq 1 20000 | sed s/^/abcdefghijklmnopqrstuvwxyz/")
        lines = process.out.splitlines()
        self.assertEqual(len(lines), 80_000)
        self.assertEqual([line for line in lines if not re.fullmatch(r"\[node\d:\d\] [a-z]{26}\d+", line)], [])

    def test_names_and_ipv6(self):
        for address in ("localhost", "::1"):
            launchers = self.nodes("echo $MASTER_ADDR", address=address)
            self.assertEqual(self.ends(*launchers), [0, 0], launchers[0].err)
            shown = {each.out.split("] ")[1].strip() for each in launchers}
            self.assertLessEqual(shown, {"127.0.0.1", "::1"})
            self.assertEqual(len(shown), 1)

    def test_the_ranks_rendezvous_at_the_dtruns_address_with_another_reserved_port(self):
        launchers = self.nodes("echo $MASTER_PORT $DTRUN_STORE_PORT")
        self.assertEqual(self.ends(*launchers), [0, 0])
        master, store = launchers[0].out.split()[1:]
        self.assertEqual(store, str(self.port))
        self.assertNotEqual(master, store)

    def test_the_ranks_secret_is_derived_from_the_jobs_secret(self):
        token = self.folder / "token"
        token.write_text(SECRET + "\n")
        token.chmod(0o600)
        text = 'echo "$DTRAIN_JOB_TOKEN ${DTRAIN_JOB_TOKEN_FILE-none}"'
        launchers = self.nodes(text, env={"DTRAIN_JOB_TOKEN_FILE": str(token)})
        self.assertEqual(self.ends(*launchers), [0, 0], launchers[0].err)
        shown = {each.out.split("] ")[1] for each in launchers}
        self.assertEqual(len(shown), 1)
        self.assertRegex(shown.pop(), r"^[0-9a-f]{64} none\n$")

    def test_logs_of_all_nodes_in_one_folder(self):
        self.dtrun("--emulate-nodes", "2", *self.shell("echo $RANK", "--log-dir", "logs"), status=0)
        logs = {path.parent.name: path.read_text() for path in (self.folder / "logs").glob("*/attempt_0/*/stdout.log")}
        self.assertEqual(logs, {str(rank): f"{rank}\n" for rank in range(4)})


class Meeting(NodesTest):
    """Rendezvous of nodes that are missing, unexpected or contradicting."""

    def test_missing_nodes_are_named_and_end_the_rendezvous(self):
        for rank, missing in ((0, "nodes 1, 2 of 3"), (2, "node 0")):
            process = self.node(rank, "--rdzv-timeout", "0.5", "true", nodes=3)
            self.assertEqual(self.ends(process), [RENDEZVOUS])
            assert_names(process.err, missing, "--rdzv-timeout")
            self.assertEqual(len(process.err.splitlines()), 1, process.err)

    def test_nodes_that_joined_report_the_missing_nodes(self):
        launchers = [self.node(rank, "--rdzv-timeout", limit, "true", nodes=3) for rank, limit in ((0, "5"), (1, "9"))]
        self.assertEqual(self.ends(*launchers), [RENDEZVOUS, RENDEZVOUS])
        for each in launchers:
            assert_names(each.err, "node 2 of 3", "5.0 s")

    def test_the_rendezvous_reports_its_progress(self):
        process = self.node(0, "--rdzv-timeout", "5", "true")
        self.assertEqual(self.ends(process), [RENDEZVOUS])
        self.assertRegex(process.err, r"dtrun: .*node 1, \d\.\d s ")

    def test_a_suspension_does_not_count_against_the_rendezvous_timeout(self):
        process = self.node(0, "-n", "1", "--rdzv-timeout", "4", "true")
        wait_until(self.try_connect, "node 0").close()
        process.send_signal(signal.SIGSTOP)
        time.sleep(5)
        process.send_signal(signal.SIGCONT)
        time.sleep(0.3)
        self.assertEqual(self.ends(process, self.node(1, "-n", "1", "true")), [0, 0], process.err)

    def test_a_late_node_and_a_node_that_rejoins(self):
        first = self.node(1, "-n", "1", "true")
        again = self.node(2, "-n", "1", "true", nodes=3)
        time.sleep(0.1)
        for each in (first, again):
            each.kill()
            each.communicate()
        launchers = [self.node(1, "-n", "1", "true")]
        time.sleep(0.1)
        launchers.append(self.node(0, "-n", "1", "true"))
        self.assertEqual(self.ends(*launchers), [0, 0], launchers[0].err)

    def test_a_stopped_reader_does_not_delay_the_rendezvous(self):
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, bytes(4096))
        os.set_blocking(writer, True)
        first = self.node(0, "-n", "1", "true", stderr=writer)
        time.sleep(2.2)  # its first line is due after 2 s
        self.assertEqual(self.ends(first, self.node(1, "-n", "1", "true")), [0, 0])
        for end in (reader, writer):
            os.close(end)

    def test_an_emulated_node_that_ends_before_the_rendezvous_ends_the_job(self):
        process = self.start("--emulate-nodes", "64", "true")
        children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while not (first := children.read_text().split()):
            pass
        os.kill(process.pid, signal.SIGSTOP)  # the other nodes are still to be started
        os.kill(int(first[0]), signal.SIGKILL)
        os.kill(process.pid, signal.SIGCONT)
        self.assertEqual(self.ends(process), [137])
        assert_names(process.err, "failed", "node 0", "status 137")
        self.assertEqual(process.err.count("\n"), 1)

    def test_contradicting_options_of_two_nodes_are_rejected(self):
        for nodes, ranks, name in ((2, ((1, 3),), "--nnodes 3"), (3, ((1, 3), (1, 3)), "--node-rank 1")):
            self.port = free_port()
            launchers = [self.node(0, "true", nodes=nodes)]
            launchers += [self.node(rank, "true", nodes=count) for rank, count in ranks]
            self.assertEqual(set(self.ends(*launchers)), {USAGE})
            for each in launchers:
                assert_names(each.err, name)
                self.assertEqual(len(each.err.splitlines()), 1, each.err)

    def test_another_version_is_rejected_on_both_sides(self):
        """A launcher of another release: it uses the protocol of docs/guide/dtrun.md with its own version."""
        launcher = self.node(0, "true")
        guest = wait_until(self.try_connect, "node 0")
        wait_until(lambda: len(guest.recv(1000, socket.MSG_PEEK)) >= 72, "a greeting")
        greeting = guest.recv(1000)
        self.assertEqual(greeting[:8], b"dtrun/4\n")
        guest.sendall(self.introduction(1, 2, b"9.9"))
        self.assertEqual(self.ends(launcher), [USAGE])
        self.assertIn("node 1 (elsewhere) runs dtrun 9.9, but node 0", launcher.err)
        self.assertIn(b"install the same version", guest.recv(4096))
        guest.close()

    def test_a_port_that_is_taken(self):
        with socket.socket() as holder:
            holder.bind(("127.0.0.1", self.port))
            holder.listen()
            process = self.node(0, "true")
            self.assertEqual(self.ends(process), [PORT])
        assert_names(process.err, "--master-port", f"port {self.port}")

    def test_an_extra_dtrun_is_told_who_uses_the_port(self):
        text = ": > here$RANK; until [ -e go ]; do sleep 0.02; done"
        launchers = [self.node(0, *self.shell(text, ranks=1))]
        wait_until(self.try_connect, "node 0").close()
        self.refuse_second_node_0(launchers[0].pid)
        launchers.append(self.node(1, *self.shell(text, ranks=1)))
        self.wait_for_files("here0", "here1")
        self.refuse_second_node_0(launchers[0].pid)
        late = self.node(1, "--rdzv-timeout", "0.5", "true")
        _, errors = late.communicate(timeout=LIMIT)
        self.assertEqual(late.returncode, RENDEZVOUS)
        assert_names(errors, f"127.0.0.1:{self.port}", "job")
        (self.folder / "go").touch()
        self.assertEqual(self.ends(*launchers), [0, 0])

    def refuse_second_node_0(self, first):
        second = self.node(0, "true")
        _, errors = second.communicate(timeout=LIMIT)
        self.assertEqual(second.returncode, PORT)
        assert_names(errors, "--master-port", f"port {self.port}", f"pid {first}")

    def test_different_or_missing_secrets_are_rejected(self):
        jobs = []
        for first, second in ((SECRET, SECRET[::-1]), (SECRET, ""), ("", SECRET)):
            self.port = free_port()
            jobs.append((self.node(1, "--rdzv-timeout", "9", "true", env={"DTRAIN_JOB_TOKEN": second}),
                         self.node(0, "--rdzv-timeout", "4", "true", env={"DTRAIN_JOB_TOKEN": first})))
        for wrong, waiting in jobs:
            for each in (wrong, waiting):
                each.out, each.err = each.communicate(timeout=20)
            self.assertEqual([wrong.returncode, waiting.returncode], [USAGE, RENDEZVOUS])
            self.assertIn("DTRAIN_JOB_TOKEN", wrong.err)
            self.assertNotIn(SECRET, wrong.err + waiting.err)
        self.assert_nothing_left()

    def introduction(self, rank, nodes, version=None):
        """The hello message of a node with one rank, as a launcher of this version sends it."""
        version = version or subprocess.run([DTRUN, "--version"], capture_output=True, check=True).stdout.split()[1]
        hello = text_field(version) + struct.pack("<QQQ", rank, nodes, 1) + text_field(b"elsewhere")
        return text_field(text_field(bytes(32)) + text_field(hello) + text_field(b""))

    def test_a_node_beyond_the_number_of_nodes_is_refused(self):
        introduction = self.introduction(7, 2)
        launcher = self.node(0, "-n", "1", "true")
        with wait_until(self.try_connect, "node 0") as guest:
            guest.sendall(introduction)
            self.assertEqual(self.ends(launcher), [USAGE], launcher.err)
        assert_names(launcher.err, "node 7 (elsewhere)", "--nnodes 2")

    def test_a_node_may_rejoin_before_node_0_notices_its_exit(self):
        introduction = self.introduction(1, 3)
        launcher = self.node(0, "-n", "1", "true", nodes=3)
        first, second = (wait_until(self.try_connect, "node 0") for _ in range(2))
        for guest in (first, second):
            guest.settimeout(LIMIT)
            guest.recv(72, socket.MSG_WAITALL)  # the greeting and the challenge
        first.sendall(introduction)
        first.recv(16, socket.MSG_WAITALL)
        os.kill(launcher.pid, signal.SIGSTOP)  # so that it sees both at once
        first.close()
        second.sendall(introduction)
        os.kill(launcher.pid, signal.SIGCONT)
        welcome = 1
        self.assertEqual(welcome, struct.unpack("<QQ", second.recv(16, socket.MSG_WAITALL))[1])
        second.close()
        launcher.terminate()
        self.ends(launcher)

    def test_a_node_that_does_not_report_its_ranks_is_lost(self):
        introduction = self.introduction(1, 2)
        rank_end, node_done = 16, 18
        for message in (struct.pack("<QQ", rank_end, 0) + bytes(8), struct.pack("<QQ", node_done, 0)):
            with self.subTest(message):
                launcher = self.node(0, "-n", "1", "sleep", "30")
                with wait_until(self.try_connect, "node 0") as guest:
                    guest.sendall(introduction + text_field(message))
                    self.assertEqual(self.ends(launcher), [COMM], launcher.err)
                assert_names(launcher.err, "failed", "node 1 (elsewhere)", "rank 1")

    def try_connect(self):
        try:
            return socket.create_connection(("127.0.0.1", self.port))
        except OSError:
            return None

    def test_conflicting_options_of_one_node_are_rejected(self):
        for arguments, words in ((("--nnodes", "2", "true"), "--node-rank"),
                                 (("--nnodes", "2", "--node-rank", "1", "true"), "--master-addr"),
                                 (("--nnodes", "2", "--node-rank", "2", "--master-addr", "h", "true"), "0 to 1"),
                                 (("--nnodes", "1:4", "true"), "1:4"),
                                 (("--emulate-nodes", "2", "--nnodes", "2", "true"), "--nnodes")):
            process = self.dtrun(*arguments, status=USAGE)
            assert_names(process.err, words)


class Failure(NodesTest):
    def test_a_rank_of_another_node_fails(self):
        started = time.monotonic()
        process = self.emulated("[ $RANK != 3 ] || { echo one >&2; echo two >&2; sleep 0.2; exit 7; }; sleep 30")
        self.assertLess(time.monotonic() - started, 10)
        self.assertEqual(process.returncode, 7)
        lines = [line for line in process.err.splitlines() if line.startswith("dtrun: ")]
        host = re.escape(socket.gethostname())
        self.assertRegex(lines[-1], rf"failed: rank 3 \(pid \d+ on {host}, node 1\) .*status 7 after .*: two$")
        self.assertIn("dtrun:   | one", lines)
        self.assertRegex(process.err, r"rank \d \(.*signal 15 .*, .*, .* later\)")
        self.assertRegex(process.err, r"dtrun \(node 1\): failed: rank 3 ")

    def test_every_launcher_has_the_culprits_status(self):
        for rank, text in ((0, "exit 7"), (2, "kill -KILL $$")):
            launchers = self.nodes(f"[ $RANK != {rank} ] || {{ sleep 0.1; {text}; }}; sleep 30", ranks=(1, 1, 1))
            self.assertEqual(set(self.ends(*launchers)), {7 if rank == 0 else 137})
            for each in launchers:
                self.assertRegex(each.err.splitlines()[-1], rf"failed: rank {rank} .*, node {rank}\)")

    def test_a_rank_that_blames_another_is_not_the_culprit(self):
        gone = "until [ -s pid ]; do :; done; while kill -0 $(cat pid) 2>&-; do :; done"
        process = self.emulated(f"case $RANK in 0) echo $$ > pid; until [ -e here3 ]; do :; done; exit 4;; "
                                f"3) : > here3; {gone}; exit 6;; esac; sleep 30", status=6)
        assert_names(process.err, "rank 0", "status 4")
        self.emulated("case $RANK in 1) sleep 0.1; exit 4;; esac; sleep 30", status=4)

    def test_a_program_that_is_missing_on_one_node(self):
        launchers = [self.node(0, "-n", "1", "sleep", "30"), self.node(1, "-n", "1", "nosuchprogram")]
        self.assertEqual(self.ends(*launchers), [SPAWN, SPAWN])
        assert_names(launchers[0].err, "failed", "node 1", "rank 1", "'nosuchprogram'")
        launchers = [self.node(0, "-n", "1", "nosuchprogram"), self.node(1, "-n", "1", "sleep", "30")]
        self.assertEqual(self.ends(*launchers), [SPAWN, SPAWN])
        assert_names(launchers[1].err, "node 0", "'nosuchprogram'")

    def test_an_error_of_all_ranks_names_no_culprit(self):
        text = ('import glob, os, time\nopen("up" + os.environ["RANK"], "w").close()\nwhile len(glob.glob("up*")) < 4:\n'
                '  time.sleep(0.01)\nos.write(int(os.environ["DTRUN_CONTROL_FD"]), b"error 3 no data\\n"); os._exit(3)')
        process = self.dtrun("--emulate-nodes", "2", "-n", "2", "--", "/usr/bin/python3", "-c", text, status=3)
        self.assertNotIn("failed:", process.err)
        self.assertEqual(process.err.count("no data"), 2, "one per node")

    def test_an_error_of_all_ranks_that_one_rank_found_is_printed_on_each_node(self):
        text = ('import os, time\nif os.environ["RANK"] == "3":\n'
                '  os.write(int(os.environ["DTRUN_CONTROL_FD"]), b"refused 3 no good file\\n"); os._exit(3)\n'
                'time.sleep(30)')
        launchers = [self.node(node, "-n", "2", "/usr/bin/python3", "-c", text) for node in (0, 1)]
        self.assertEqual(self.ends(*launchers), [3, 3])
        self.assertEqual([each.err for each in launchers], ["dtrun: no good file\n", "no good file\n"])

    def test_an_error_of_one_node_is_printed_with_the_node(self):
        text = ('import os, time\nif os.environ["RANK"] == "2":\n'
                '  os.write(int(os.environ["DTRUN_CONTROL_FD"]), b"error 3 no data\\n"); os._exit(3)\n'
                'time.sleep(30)')
        process = self.dtrun("--emulate-nodes", "2", "-n", "2", "--", "/usr/bin/python3", "-c", text, status=3)
        assert_names(process.err, "failed", "rank 2", "node 1", "status 3", "no data")


class Loss(NodesTest):
    """A launcher that dies or falls silent."""

    def test_a_launcher_that_is_killed(self):
        for lost in (0, 1):
            for kill_guard in (True, False):
                launchers = self.nodes(WAIT, ranks=(2, 2))
                self.wait_for_files(*(f"here{rank}" for rank in range(4)))
                started = time.monotonic()
                os.kill(launchers[lost].pid if kill_guard else supervisor_of(launchers[lost]), signal.SIGKILL)
                other = launchers[1 - lost]
                other.out, other.err = other.communicate(timeout=LIMIT)
                self.assertLess(time.monotonic() - started, 10)
                launchers[lost].communicate(timeout=LIMIT)
                self.assertEqual(other.returncode, COMM, other.err)
                ranks = f"{2 * lost} to {2 * lost + 1}"
                assert_names(other.err.splitlines()[-1], "failed", f"node {lost}", f"ranks {ranks}")
                for path in self.folder.glob("here*"):
                    path.unlink()
                self.assert_nothing_left(1)

    def test_a_launcher_that_is_stopped(self):
        for lost in (0, 1):
            launchers = self.nodes(WAIT, "--heartbeat-timeout", "1")
            self.wait_for_files("here0", "here1")
            time.sleep(1)  # the nodes report to each other that all have started
            supervisor = supervisor_of(launchers[lost])
            started = time.monotonic()
            os.kill(supervisor, signal.SIGSTOP)
            other = launchers[1 - lost]
            other.out, other.err = other.communicate(timeout=LIMIT)
            self.assertTrue(0.5 < time.monotonic() - started < 10)
            self.assertEqual(other.returncode, TIMEOUT, other.err)
            assert_names(other.err.splitlines()[-1], "failed", f"node {lost}", f"rank {lost}", "1.0 s")
            errors = launchers[lost].communicate(timeout=LIMIT)[1]  # its watchdog does not wait for ever
            assert_names(errors, "failed", "nodes")
            self.assert_nothing_left(1)
            for path in self.folder.glob("here*"):
                path.unlink()

    def test_after_losing_node_0_a_node_reports_only_its_own_ranks(self):
        launchers = self.nodes(WAIT, ranks=(1, 1, 2))
        self.wait_for_files(*(f"here{rank}" for rank in range(4)))
        os.kill(supervisor_of(launchers[0]), signal.SIGKILL)
        self.assertEqual(self.ends(*launchers)[1:], [COMM, COMM])
        for node, other in ((1, r"rank [023] \("), (2, r"rank [01] \(")):
            self.assertIn("result: rank ", launchers[node].err)
            self.assertNotRegex(launchers[node].err, other)

    def test_a_healthy_job_runs_longer_than_the_heartbeat_timeout(self):
        process = self.emulated("sleep 4", "--heartbeat-timeout", "1.5")
        self.assertEqual((process.returncode, process.err), (0, ""))


class Stop(NodesTest):
    def test_a_signal_at_any_node_stops_all_nodes(self):
        for node, number in ((0, signal.SIGTERM), (1, signal.SIGINT)):
            launchers = self.nodes("trap 'kill -KILL $!; echo saved; exit 9' TERM; : > here$RANK; sleep 30 & wait $!", ranks=(1, 2))
            self.wait_for_files("here0", "here1", "here2")
            launchers[node].send_signal(number)
            self.assertEqual(self.ends(*launchers), [SAVED, SAVED], launchers[0].err)
            self.assertEqual(sum(each.out.count("saved") for each in launchers), 3)
            for path in self.folder.glob("here*"):
                path.unlink()

    def test_the_same_signal_at_all_nodes_is_one_stop_and_a_second_one_kills(self):
        text = "trap ': > told$RANK' TERM; : > here$RANK; while :; do sleep 0.05; done"
        process = self.start("--emulate-nodes", "2", *self.shell(text))
        self.wait_for_files(*(f"here{rank}" for rank in range(4)))
        process.send_signal(signal.SIGINT)
        self.wait_for_files(*(f"told{rank}" for rank in range(4)))
        time.sleep(0.3)
        self.assertIsNone(process.poll())
        process.send_signal(signal.SIGINT)
        self.assertEqual(self.ends(process), [130], process.err)

    def test_a_suspend_that_the_kernel_skips_leaves_no_node_suspended(self):
        """No shell could continue a session leader: it continues at once, and so do the ranks."""
        text = "trap 'echo >> continued$RANK' CONT; : > here$RANK; until [ -e go ]; do sleep 0.02; done"
        launchers = [self.node(rank, "-n", "1", "--", "sh", "-c", text, start_new_session=True) for rank in range(2)]
        self.wait_for_files("here0", "here1")
        launchers[1].send_signal(signal.SIGTSTP)
        time.sleep(1)
        (self.folder / "go").touch()
        self.assertEqual(self.ends(*launchers), [0, 0], launchers[0].err + launchers[1].err)
        for path in self.folder.glob("continued*"):
            self.assertLessEqual(len(path.read_text()), 2)

    def test_orphans_of_a_shell_save_on_each_node(self):
        """SIGTERM kills the shells; their child programs save."""
        saver = "trap 'sleep 0.2; exit 9' TERM; : > here$RANK; while :; do sleep 0.05; done"
        launchers = self.nodes(f'sh -c "{saver.replace("$", chr(92) + "$")}"; true')
        self.wait_for_files("here0", "here1")
        launchers[1].send_signal(signal.SIGTERM)
        self.assertEqual(self.ends(*launchers), [SAVED, SAVED], launchers[0].err)

    def test_the_last_ranks_get_the_whole_stop_grace(self):
        """After a rank on one node has saved, the ranks on other nodes still have --stop-grace."""
        launchers = self.nodes("[ $RANK = 1 ] && exit 9; sleep 0.5; echo done; exit 9")
        self.assertEqual(self.ends(*launchers), [SAVED, SAVED])
        self.assertIn("done", launchers[0].out)
        launchers = self.nodes("[ $RANK = 0 ] && exit 9; exec sleep 30", "--stop-grace", "0.3")
        self.assertEqual(self.ends(*launchers), [TIMEOUT, TIMEOUT])


class Training(NodesTest):
    limit = 60
    DTRAIN = str(pathlib.Path(DTRUN).with_name("dtrain"))
    FLAGS = ("--strategy", "ddp", "--layers", "2", "--width", "16", "--heads", "2", "--neurons", "16", "--seq-len", "16",
             "--global-batch", "8", "--threads", "1", "--data", "text", "--log-every", "1")

    def setUp(self):
        super().setUp()
        (self.folder / "text").write_bytes(bytes(range(32, 96)) * 400)

    def losses(self, run):
        lines = map(json.loads, (self.folder / run / "metrics.jsonl").read_text().splitlines())
        return [(line["loss"], line["grad_norm"]) for line in lines if "loss" in line]

    def test_two_nodes_train_bit_for_bit_like_one(self):
        for run, where in (("one", ("-n", "4")), ("two", ("--emulate-nodes", "2", "-n", "2"))):
            self.dtrun(*where, "--", self.DTRAIN, *self.FLAGS, "--steps", "4", "--run-dir", run, status=0)
        self.assertEqual(self.losses("one"), self.losses("two"))
        self.assertEqual(len(self.losses("one")), 4)

    def test_a_rank_that_is_killed_is_named_with_its_step_and_a_stop_saves(self):
        process = self.train()
        (victim,) = [pid for pid in self.marked() if program_of(pid) == "dtrain" and variable_of(pid, "RANK") == "2"]
        os.kill(victim, signal.SIGKILL)
        started = time.monotonic()
        self.assertEqual(self.ends(process), [137])
        self.assertLess(time.monotonic() - started, 30)
        self.assertRegex(process.err, rf"dtrun: failed: rank 2 \(pid {victim} on .*, node 1\) was killed .* at step \d+")
        process = self.train()
        process.send_signal(signal.SIGTERM)
        self.assertEqual(self.ends(process), [SAVED], process.err)

    def train(self):
        shutil.rmtree(self.folder / "long", ignore_errors=True)
        process = self.start("--emulate-nodes", "2", "-n", "2", "--", self.DTRAIN, *self.FLAGS, "--steps", "100000",
                             "--run-dir", "long", stdout=subprocess.DEVNULL)
        metrics = self.folder / "long" / "metrics.jsonl"
        wait_until(lambda: metrics.exists() and '"step":3,' in metrics.read_text(), "steps", self.limit)
        return process


if __name__ == "__main__":
    main()
