"""Rendezvous of ranks: only they can join, no socket stays open, and each error names its cause."""

import contextlib
import errno
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import time
import unittest

from dtrain_harness import BUILD, SOURCE, final_model, free_port, need_mounts
from dtrun_harness import family, program_of
from dtrun_nodes_harness import LISTEN
from messages import assert_names, error_line, holds
from train_test import DTRAIN, DTRUN, LIMIT, TrainTest, wait_until

NOBODY = 65534
SECRET = "0123456789abcdef0123456789abcdef"
LISTENING = "0A"  # as /proc/net/tcp says it

# Runs WHAT, Python code, before it becomes the rank; `door` is the descriptor of dtrun's rendezvous socket.
BEFORE_RANK = """
import os, socket, sys
door = int(os.environ["DTRUN_STORE_FD"])
if os.environ["RANK"] == "1":
    WHAT
os.execv(sys.argv[1], sys.argv[1:])
"""


def sockets_of(pid):
    """Inode -> whether it is closed on exec, of the sockets of a process, which may end meanwhile."""
    found, entries = {}, []
    with contextlib.suppress(OSError):
        entries = os.listdir(f"/proc/{pid}/fd")
    for entry in entries:
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/{pid}/fd/{entry}")
            flags = re.search(r"flags:\s*(\d+)", pathlib.Path(f"/proc/{pid}/fdinfo/{entry}").read_text())[1]
            if target.startswith("socket:["):
                found[target[8:-1]] = bool(int(flags, 8) & os.O_CLOEXEC)
    return found


def tcp_rows():
    """Inode -> (local address, port, state) of all TCP sockets."""
    rows = {}
    for name in ("tcp", "tcp6"):
        for line in pathlib.Path("/proc/net", name).read_text().splitlines()[1:]:
            words = line.split()
            address, _, port = words[1].partition(":")
            rows[words[9]] = (address, int(port, 16), words[3])
    return rows


def unix_listeners():
    """Inode -> name of all unix sockets that listen."""
    rows = [line.split() for line in pathlib.Path("/proc/net/unix").read_text().splitlines()[1:]]
    return {row[6]: " ".join(row[7:]) for row in rows if row[3] == "00010000"}


class RendezvousTest(TrainTest):
    def start(self, command, **options):
        process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, text=True, **options)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def end_of(self, process, status=0):
        error = process.communicate(timeout=LIMIT)[1]
        self.assertEqual(process.returncode, status, error)
        self.assertNotIn("\x1b", error)
        return error

    def ddp_command(self, *flags, **options):
        return [DTRAIN, "--strategy", "ddp", *self.arguments(*flags, **options)]

    def start_rank(self, rank, port, *flags, before=(), pass_fds=(), **variables):
        environment = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2",
                       "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **variables}
        return self.start([*before, *self.ddp_command(*flags)], env={**os.environ, **environment}, pass_fds=pass_fds)

    def has_trained(self):
        file = self.run_dir / "metrics.jsonl"
        return file.exists() and '"step":1,' in file.read_text()



class Open(RendezvousTest):
    """The sockets that a running job leaves open."""

    def sockets_of_job(self, *flags):
        job = self.start([DTRUN, "-n", "2", "--", *self.ddp_command("--log-every", "1", *flags, steps=1_000_000)])
        wait_until(lambda: self.has_trained() or job.poll() is not None, "a step")
        self.assertIsNone(job.poll(), job.poll() is not None and job.stderr.read())
        found = {pid: sockets_of(pid) for pid in family(job.pid)}
        ranks = [pid for pid in found if program_of(pid) == "dtrain"]
        self.assertEqual(len(ranks), 2)
        tcp, unix = tcp_rows(), unix_listeners()
        job.terminate()
        self.end_of(job, 9)
        return found, ranks, tcp, unix

    def test_nothing_listens_and_the_store_is_closed_while_ranks_of_one_machine_train(self):
        found, ranks, tcp, unix = self.sockets_of_job()
        for pid, sockets in found.items():
            held = [tcp[inode] for inode in sockets if inode in tcp]
            self.assertEqual(len(held), 0 if pid in ranks else len(held))  # a rank has no TCP socket at all
            self.assertEqual([row for row in held if row[2] == LISTENING], [])
            listening = {unix[inode] for inode in sockets if inode in unix}
            # dtrun claims the job's port with this name; it accepts no connections there.
            self.assertEqual({name for name in listening if not name.startswith("@dtrun-port-")}, set())
        for pid in ranks:  # the control connection; ranks that share memory need no other
            self.assertEqual(len(found[pid]), 1, found[pid])
            self.assertTrue(all(found[pid].values()), "what a rank starts must not get its sockets")

    def test_gloo_is_bound_to_the_loopback_under_dtrun(self):
        found, ranks, tcp, _ = self.sockets_of_job("--backend", "gloo")
        rows = [tcp[inode] for pid in ranks for inode in found[pid] if inode in tcp]
        self.assertEqual({row[0] for row in rows}, {"0100007F"}, rows)
        self.assertEqual([state for _, _, state in rows].count(LISTENING), 2)

    def test_a_foreign_listener_at_master_port_does_not_end_a_job_of_two_nodes(self):
        port, go = self.root / "port", self.root / "go"
        waiting = f'[ $RANK = 1 ] || {{ echo $MASTER_PORT >{port}.tmp; mv {port}.tmp {port}; }}; ' \
                  f'until [ -e {go} ]; do sleep 0.02; done; exec "$@"'
        job = self.start([DTRUN, "--emulate-nodes", "2", "-n", "1", "--", "sh", "-c", waiting, "sh",
                          *self.ddp_command("--backend", "gloo")])
        wait_until(port.exists, "the port")
        with subprocess.Popen([sys.executable, "-c", LISTEN, port.read_text().strip()], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True) as stranger:
            self.assertEqual(stranger.stdout.readline(), "listens\n")
            go.touch()
            self.end_of(job)
            stranger.communicate()
        self.assertEqual(self.metrics()[-1]["event"], "end")

    def test_nothing_listens_while_two_nodes_train_on_one_machine_but_the_socket_of_node_0s_dtrun(self):
        job = self.start([DTRUN, "--emulate-nodes", "2", "-n", "1", "--",
                          *self.ddp_command("--log-every", "1", steps=1_000_000)])
        wait_until(lambda: self.has_trained() or job.poll() is not None, "a step")
        sockets = {pid: set(sockets_of(pid)) for pid in family(job.pid)}
        held = set().union(*sockets.values())
        tcp, unix = tcp_rows(), unix_listeners()
        listening = {inode for inode in held & set(tcp) if tcp[inode][2] == LISTENING}
        holders = [program_of(pid) for pid, own in sockets.items() if own & listening]
        job.terminate()
        self.end_of(job, 9)
        self.assertGreater(len(held & set(tcp)), 0)  # the launchers' channel
        self.assertEqual((len(listening), holders), (1, ["dtrun-ranks"]))
        # This name shows which dtrun uses a MASTER_PORT; the peer credentials give its pid.
        self.assertEqual([], [unix[inode] for inode in held & set(unix) if not unix[inode].startswith("@dtrun-port-")])


class Strangers(RendezvousTest):
    """Processes outside the job have no effect on it."""

    def act_as(self, user, text, *arguments):
        def become():
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
        return subprocess.run([sys.executable, "-I", "-c", text, *map(str, arguments)], capture_output=True, text=True,
                              timeout=LIMIT, check=True, preexec_fn=become if user else None).stdout

    def visit(self, user, port):
        """Sends a valid hello as rank 1 of 2 and returns the response."""
        return self.act_as(user, """
import socket, struct, sys
def text(b): return struct.pack("<Q", len(b)) + b
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=20)
got = s.recv(4096)
try:
    s.sendall(text(text(b"x" * 32) + text(struct.pack("<QQ", 1, 2)) + text(b"y" * 32)))
    got += s.recv(4096)
except OSError:
    pass
print(len(got))
""", port)

    def disturb(self, port):
        """Sends what a port scanner, a browser and a faulty program of the same user would; one connection stays open."""
        for data in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, b"\0" * 4096):
            with socket.create_connection(("127.0.0.1", port)) as guest:
                guest.sendall(data)
        silent = socket.create_connection(("127.0.0.1", port))
        self.addCleanup(silent.close)

    def test_another_user_and_garbage_have_no_effect_during_the_rendezvous(self):
        if os.getuid() != 0:
            self.skipTest("needs root: to be another user")
        for secret in ({}, {"DTRAIN_JOB_TOKEN": SECRET}):
            port = free_port()
            first = self.start_rank(0, port, "--overwrite", **secret)
            wait_until(lambda: any(row[1] == port and row[2] == LISTENING for row in tcp_rows().values()), "the store")
            answers = [int(self.visit(NOBODY, port)) for _ in range(2)]
            # Another user's connection is closed unread; a process without the secret gets the greeting, the message with the
            # challenge, and the reply that the secret is not the job's.
            offer, reply = 8 + 8 + 8 + 8 + 32 + 8, 8 + 8 + 8 + 8 + 8
            self.assertEqual(answers, [offer + reply if secret else 0] * 2)
            self.disturb(port)
            self.assertIsNone(first.poll())
            second = self.start_rank(1, port, "--overwrite", **secret)
            self.assertEqual(self.end_of(second), "")
            self.end_of(first)

    def through_the_door(self, what):
        wrapper = self.root / "before_rank.py"
        wrapper.write_text(BEFORE_RANK.replace("WHAT", what))
        return self.run_command([DTRUN, "-n", "2", "--", sys.executable, wrapper, *map(str, self.ddp_command())])

    def test_garbage_at_dtruns_rendezvous_socket_has_no_effect(self):
        garbage = "b'\\x1b[31mnonsense' * 100"
        self.through_the_door(f"""
    mine, theirs = socket.socketpair()
    mine.sendall({garbage})
    end = socket.socket(fileno=door)
    end.send({garbage})
    socket.send_fds(end, [b'x'], [theirs.fileno()])
    socket.send_fds(end, [bytes(8)], [theirs.fileno(), 0])
    socket.send_fds(end, [bytes(8)], [theirs.fileno()])
    socket.send_fds(end, [bytes(8)], [0])
    end.detach()""".strip())

    def test_ranks_can_run_one_job_after_the_other(self):
        folders = [self.root / name for name in ("first", "second")]
        jobs = [" ".join(f"'{word}'" for word in self.ddp_command(steps=1, run_dir=folder)) for folder in folders]
        self.run_command([DTRUN, "-n", "2", "--", "sh", "-c", " && ".join(jobs)])
        for folder in folders:
            self.assertEqual(self.metrics(folder)[-1]["event"], "end")

    def test_finding_the_owner_of_a_connection_does_not_scan_all_connections(self):
        port, log = free_port(), self.root / "opened"
        tracer = ["strace", "-f", "--seccomp-bpf", "-qq", "-o", str(log), "-e", "trace=open,openat"]
        ranks = [self.start_rank(rank, port, before=() if rank else tracer) for rank in range(2)]
        for rank in ranks:
            self.end_of(rank)
        self.assertNotIn("/proc/net/tcp", log.read_text())


class Secrets(RendezvousTest):
    def refused(self, rank, status=2, **variables):
        """Returns the error of a rank that finds a mistake before it waits for another one."""
        return error_line(self.end_of(self.start_rank(rank, free_port(), **variables), status))

    def test_an_invalid_secret_is_rejected_with_the_name_of_its_variable(self):
        assert_names(self.refused(0, DTRAIN_JOB_TOKEN="short"), "DTRAIN_JOB_TOKEN", "5 bytes")
        path = self.root / "token"
        path.write_text(SECRET + "\n")
        path.chmod(0o644)
        self.assertIn(f"DTRAIN_JOB_TOKEN_FILE: {path}", self.refused(1, DTRAIN_JOB_TOKEN_FILE=str(path)))
        self.assertIn("both set", self.refused(1, DTRAIN_JOB_TOKEN_FILE=str(path), DTRAIN_JOB_TOKEN=SECRET))

    def test_ranks_with_different_secrets_do_not_connect(self):
        path = self.root / "token_600"
        path.write_text(SECRET + "\n")
        path.chmod(0o600)
        port = free_port()
        first = self.start_rank(0, port, DTRAIN_JOB_TOKEN_FILE=str(path))
        for variables in ({}, {"DTRAIN_JOB_TOKEN": SECRET[::-1]}):
            error = error_line(self.end_of(self.start_rank(1, port, **variables), 2))
            self.assertIn("DTRAIN_JOB_TOKEN", error)
            self.assertNotIn(SECRET, error)
        self.end_of(self.start_rank(1, port, DTRAIN_JOB_TOKEN=SECRET))  # the right secret, whatever its source
        self.end_of(first)


class Nodes(RendezvousTest):
    """Two launchers whose nodes differ: in ranks, and so in the threads of each."""

    def train(self, *flags, status=0, **options):
        port = free_port()
        words = [*self.ddp_command("--global-batch", "3", "--microbatch", "1", "--threads", "0", *flags, **options)]
        nodes = [self.start([DTRUN, "--nnodes", "2", "--node-rank", str(node), "--master-addr", "127.0.0.1",
                             "--master-port", str(port), "-n", str(node + 1), "--", *words],
                            env={**os.environ, "OMP_NUM_THREADS": str(2 - node)}) for node in range(2)]
        return [self.end_of(node, status) for node in nodes]

    def test_threads_are_derived_per_node_and_change_no_bit(self):
        large = ("--width", "128", "--neurons", "512")  # enough for threads to share it
        self.train(*large)
        alike = self.root / "alike"
        self.ddp("--global-batch", "3", "--microbatch", "1", *large, ranks=3, run_dir=alike)
        self.assertEqual(final_model(self.run_dir).read_bytes(), final_model(alike).read_bytes())

    def test_threads_that_change_bits_must_be_given(self):
        for error in self.train("--kernels", "plain", status=2):
            assert_names(error, "ranks 0 and 1", "machine.threads", "--threads", "2 on rank 0, 1 on rank 1")


class Errors(RendezvousTest):
    def test_ranks_of_two_builds_do_not_train_together(self):
        for name in ("bin", "lib"):
            (self.root / name).mkdir()
        (self.root / "lib" / "libdtrain.so").symlink_to(BUILD / "lib" / "libdtrain.so")
        shown = subprocess.run([DTRAIN, "--version"], capture_output=True, check=True).stdout
        commit = re.search(rb"commit ([^)]+)", shown)[1]
        other = pathlib.Path(shutil.copy(DTRAIN, self.root / "bin"))
        other.write_bytes(DTRAIN.read_bytes().replace(commit, b"f" * len(commit)))
        torch = os.pathsep.join(str(path) for path in (SOURCE / ".deps").rglob("torch/lib"))
        port = free_port()
        ranks = [self.start_rank(0, port),
                 self.start_rank(1, port, before=["sh", "-c", 'shift; exec "$0" "$@"', other], LD_LIBRARY_PATH=torch)]
        for rank in ranks:
            self.assertRegex(error_line(self.end_of(rank, 2)),
                             r"ranks 0 and 1 .*: dtrain \S+ \(commit .*\), LibTorch \S+ on rank 0, dtrain \S+ \(commit f+\), LibTorch \S+ on rank 1; ")

    def test_a_port_that_is_taken_at_a_names_first_address_is_not_taken_at_its_second(self):
        if os.getuid() != 0:
            self.skipTest("needs root: to mount /etc/hosts")
        need_mounts(self)
        table = self.root / "hosts"
        table.write_text("127.0.0.1 head\n127.0.0.2 head\n")
        named = ["unshare", "--mount", "sh", "-c", f"mount --bind {table} /etc/hosts && exec \"$@\"", "sh"]
        with socket.create_server(("127.0.0.1", 0)) as holder:
            port = holder.getsockname()[1]
            rank = self.start_rank(0, port, "--comm-timeout", "1", before=named, MASTER_ADDR="head")
            error = error_line(self.end_of(rank, 11))
        assert_names(error, "rank 0", f"head:{port}", os.strerror(errno.EADDRINUSE))

    def test_a_foreign_program_at_the_port_is_told_from_a_store(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            rank = self.start_rank(1, port)
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"SSH-2.0-\x1b[31mOpen\x9b\r\n")
                error = error_line(self.end_of(rank, 4))
        self.assertIn(f"127.0.0.1:{port}", error)
        self.assertIn('it sent "SSH-2.0-?[31mOpen', error)

    def test_a_store_of_another_protocol_is_one_of_another_build(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            rank = self.start_rank(1, server.getsockname()[1])
            with server.accept()[0] as connection:
                connection.sendall(b"dtrain/1")
                error = error_line(self.end_of(rank, 2))
        assert_names(error, "builds")
        self.assertIn('"dtrain/1"', error)

    def test_a_store_that_never_comes_is_named_with_the_time_really_waited(self):
        port = free_port()
        start = time.monotonic()
        error = error_line(self.end_of(self.start_rank(1, port, "--comm-timeout", "1"), 5))
        waited = float(re.search(r"within ([\d.]+) s", error)[1])
        self.assertLessEqual(1.0, waited)
        self.assertLess(waited, time.monotonic() - start)
        self.assertIn(f"127.0.0.1:{port}", error)
        self.assertIn("Connection refused", error)
        with socket.create_server(("127.0.0.1", 0)) as mute:
            port = mute.getsockname()[1]
            self.assertIn(f"127.0.0.1:{port}", self.end_of(self.start_rank(1, port, "--comm-timeout", "1"), 5))

    def test_at_dtruns_port_ranks_wait_for_rank_0(self):
        with socket.create_server(("127.0.0.1", 0)) as server:  # dtrun's
            port = server.getsockname()[1]
            rank = self.start_rank(1, 1, "--comm-timeout", "1", DTRUN_STORE_PORT=str(port), DTRUN_MASTER="127.0.0.1:1")
            error = error_line(self.end_of(rank, 5))
        self.assertRegex(error, r"rank 0, .*[\d.]+ s")

    def test_a_listening_socket_that_did_not_reach_rank_0_is_named(self):
        with socket.socket() as mute, socket.create_server(("127.0.0.1", 0)) as elsewhere:
            for descriptor in (None, 99, mute.fileno(), elsewhere.fileno()):
                words = {"DTRUN_MASTER": "127.0.0.1:1", "DTRUN_STORE_PORT": "2"}
                if descriptor is not None:
                    words["DTRUN_STORE_LISTENER_FD"] = str(descriptor)
                rank = self.start_rank(0, 1, pass_fds=[mute.fileno(), elsewhere.fileno()], **words)
                error = error_line(self.end_of(rank, 2))
                found = "nothing" if descriptor is None else f"descriptor {descriptor}"
                assert_names(error, "DTRUN_STORE_LISTENER_FD", found, "port 2")

    def test_a_rank_that_ends_while_the_others_wait_is_named_at_once(self):
        port = free_port()
        first = self.start_rank(0, port, WORLD_SIZE="4", LOCAL_WORLD_SIZE="4")
        second = self.start_rank(1, port, WORLD_SIZE="4", LOCAL_WORLD_SIZE="4")
        while not holds(line := first.stderr.readline(), "ranks 2, 3 of 4"):
            self.assertTrue(line, "rank 0 has ended")
        second.kill()
        assert_names(error_line(self.end_of(first, 4)), "rank 1")


if __name__ == "__main__":
    unittest.main()
