"""Unauthenticated connections have no effect on a job of several nodes, whatever they send and when."""

import contextlib
import errno
import os
import pathlib
import resource
import socket
import struct
import subprocess
import unittest

import stub_ranks
from dtrain_harness import free_port
from dtrun_harness import main, wait_until
from dtrun_nodes_harness import LISTEN, RENDEZVOUS, SECRET, text_field, NodesTest


class Strangers(NodesTest):
    def try_connect(self):
        try:
            return socket.create_connection(("127.0.0.1", self.port))
        except OSError:
            return None

    def test_a_foreign_listener_that_precedes_node_0_has_no_effect(self):
        """It sends what would end the rendezvous if node 0 sent it: that it does not know the secret."""
        same_user, token, unknown = 2, 3, 3
        with socket.create_server(("127.0.0.1", self.port)) as server:
            other = self.node(1, "-n", "1", "true", env={"DTRAIN_JOB_TOKEN": SECRET})
            for offer in (same_user, token, token):
                stranger = server.accept()[0]
                stranger.sendall(b"dtrun/4\n" + text_field(struct.pack("<Q", offer) + text_field(bytes(32)) + text_field(b"")))
                stranger.sendall(text_field(struct.pack("<QQ", unknown, 0) + text_field(b"") + text_field(b"")))
                with contextlib.suppress(ConnectionResetError):  # the connection was dropped before all data was read
                    stranger.recv(1 << 16)
                stranger.close()
        launcher = self.node(0, "-n", "1", "true", env={"DTRAIN_JOB_TOKEN": SECRET})
        self.assertEqual(self.ends(launcher, other), [0, 0], other.err if hasattr(other, "err") else "")

    def test_unauthenticated_connections_that_use_up_all_descriptors_are_dropped(self):
        launcher = self.node(0, "-n", "1", "true", env={"DTRAIN_JOB_TOKEN": SECRET},
                             preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)))
        strangers = [wait_until(self.try_connect, "node 0") for _ in range(100)]
        other = self.node(1, "-n", "1", "true", env={"DTRAIN_JOB_TOKEN": SECRET})
        self.assertEqual(self.ends(launcher, other), [0, 0], launcher.err)
        for stranger in strangers:
            stranger.close()

    def test_unauthenticated_connections_have_no_effect(self):
        for secret in (SECRET, ""):
            self.port = free_port()
            launcher = self.node(0, "-n", "1", "true", env={"DTRAIN_JOB_TOKEN": secret})
            strangers = []
            for text in (b"", b"GET / HTTP/1.0\r\n\r\n", b"\xff" * 100_000, struct.pack("<Q", 1 << 60),
                         struct.pack("<QQ", 24, 1 << 40) + bytes(16), bytes(8192)) * 20:
                strangers.append(wait_until(self.try_connect, "node 0"))
                with contextlib.suppress(OSError):  # the connection was dropped already
                    strangers[-1].sendall(text)
            other = self.node(1, "-n", "1", "true", env={"DTRAIN_JOB_TOKEN": secret})
            self.assertEqual(self.ends(launcher, other), [0, 0], launcher.err)
            for stranger in strangers:
                stranger.close()

    @unittest.skipIf(os.geteuid() != 0, "needs root: to be another user")
    def test_another_user_gets_no_greeting(self):
        launcher = self.node(0, "-n", "1", "true")
        wait_until(self.try_connect, "node 0").close()
        listen = f"import socket; print(socket.create_connection(('127.0.0.1', {self.port})).recv(99))"
        heard = subprocess.run(["/usr/bin/python3", "-c", listen], user=65534, capture_output=True, text=True, check=False,
                               cwd="/")
        self.assertEqual(heard.stdout, "b''\n", heard.stderr)
        self.assertEqual(self.ends(launcher, self.node(1, "-n", "1", "true")), [0, 0], launcher.err)

    def test_a_foreign_server_in_place_of_node_0_is_reported(self):
        with socket.create_server(("127.0.0.1", self.port)) as server:
            process = self.node(1, "--rdzv-timeout", "1", "true")
            server.accept()[0].sendall(b"SSH-2.0-OpenSSH\r\n")
            self.assertEqual(self.ends(process), [RENDEZVOUS])


# What a foreign program does to the socket that it shares with dtrun and with the next attempt's rank 0.
BLOCK = "import os, socket; socket.socket(fileno=int(os.environ['DTRUN_STORE_LISTENER_FD'])).setblocking(True)"


class RanksStore(NodesTest):
    """Ranks connect at the socket at which node 0's dtrun listens for rank 0. They run dtrain's code, without LibTorch."""

    def listen_elsewhere(self, port):
        """Listens there as another user, if this user may; returns "listens", or why not."""
        options = {"user": 65534} if os.geteuid() == 0 else {}
        process = subprocess.Popen(["/usr/bin/python3", "-c", LISTEN, port], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   text=True, cwd="/", **options)
        self.addCleanup(process.communicate)
        return process.stdout.readline().strip()

    def connections_to(self, port):
        rows = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()]
        return [row for row in rows if row[2].endswith(f":{port:04X}") and row[3] == "01"]

    def test_a_listener_at_master_port_has_no_effect_and_the_stores_port_cannot_be_bound(self):
        launchers = self.nodes("echo $MASTER_PORT $DTRUN_STORE_PORT > t$RANK; mv t$RANK at$RANK; "
                               f"while [ ! -e go ]; do sleep 0.02; done; exec {stub_ranks.STUB}")
        self.wait_for_files("at0", "at1")
        master, store = (self.folder / "at0").read_text().split()
        self.assertEqual(self.listen_elsewhere(master), "listens")
        self.assertEqual(self.listen_elsewhere(store), os.strerror(errno.EADDRINUSE))
        (self.folder / "go").touch()
        self.assertEqual(self.ends(*launchers), [0, 0], launchers[0].err)

    def test_a_restart_uses_the_same_socket_despite_earlier_foreign_connections(self):
        launchers = self.nodes("try=$TORCHELASTIC_RESTART_COUNT; echo $DTRUN_STORE_PORT > t$RANK; mv t$RANK at$RANK-$try; "
                               "[ $RANK$try = 00 ] && { while [ ! -e go ]; do sleep 0.02; done; "
                               f'python3 -c "{BLOCK}"; exit 7; }}; '
                               f"exec {stub_ranks.STUB}", "--max-restarts", "1", "--restart-backoff", "0.05")
        self.wait_for_files("at0-0", "at1-0")
        port = int((self.folder / "at0-0").read_text())
        wait_until(lambda: self.connections_to(port), "rank 1's connection")
        strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(300)]
        for stranger in strangers[::2]:
            stranger.sendall(b"\xff" * 1000)
        (self.folder / "go").touch()
        self.assertEqual(self.ends(*launchers), [0, 0], launchers[0].err)
        self.assertIn("dtrun: restart 1 of 1 in ", launchers[0].err)
        self.assertEqual({(self.folder / f"at{rank}-{attempt}").read_text() for rank in range(2) for attempt in range(2)},
                         {f"{port}\n"})
        for stranger in strangers:
            stranger.close()


if __name__ == "__main__":
    main()
