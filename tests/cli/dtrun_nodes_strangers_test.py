"""Who does not belong to a job of several nodes has no effect on it, whatever they say and when."""

import contextlib
import os
import pathlib
import resource
import socket
import struct
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from dtrun_harness import main, wait_until  # noqa: E402
from dtrun_nodes_harness import RENDEZVOUS, SECRET, free_port, text_field, NodesTest  # noqa: E402


class Strangers(NodesTest):
    def try_connect(self):
        try:
            return socket.create_connection(("127.0.0.1", self.port))
        except OSError:
            return None

    def test_a_stranger_who_is_there_before_node_0_has_no_effect(self):
        """It says what would end the wait, were it node 0: that it does not know the secret."""
        same_user, unknown = 1, 3
        with socket.create_server(("127.0.0.1", self.port)) as server:
            other = self.node(1, "-n", "1", "true", env={"DTRAIN_JOB_TOKEN": SECRET})
            for offer in (same_user, 2, 2):
                stranger = server.accept()[0]
                stranger.sendall(b"dtrun/2\n" + text_field(struct.pack("<Q", offer) + text_field(bytes(32))))
                stranger.sendall(text_field(struct.pack("<QQ", unknown, 0) + text_field(b"") + text_field(b"")))
                with contextlib.suppress(ConnectionResetError):  # it was dropped before all that it said was read
                    stranger.recv(1 << 16)
                stranger.close()
        launcher = self.node(0, "-n", "1", "true", env={"DTRAIN_JOB_TOKEN": SECRET})
        self.assertEqual(self.ends(launcher, other), [0, 0], other.err if hasattr(other, "err") else "")

    def test_strangers_who_hold_all_files_are_dropped(self):
        launcher = self.node(0, "-n", "1", "true", env={"DTRAIN_JOB_TOKEN": SECRET},
                             preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)))
        strangers = [wait_until(self.try_connect, "node 0") for _ in range(100)]
        other = self.node(1, "-n", "1", "true", env={"DTRAIN_JOB_TOKEN": SECRET})
        self.assertEqual(self.ends(launcher, other), [0, 0], launcher.err)
        for stranger in strangers:
            stranger.close()

    def test_strangers_have_no_effect(self):
        for secret in (SECRET, ""):
            self.port = free_port()
            launcher = self.node(0, "-n", "1", "true", env={"DTRAIN_JOB_TOKEN": secret})
            strangers = []
            for text in (b"", b"GET / HTTP/1.0\r\n\r\n", b"\xff" * 100_000, struct.pack("<Q", 1 << 60),
                         struct.pack("<QQ", 24, 1 << 40) + bytes(16), bytes(8192)) * 20:
                strangers.append(wait_until(self.try_connect, "node 0"))
                with contextlib.suppress(OSError):  # it was dropped already
                    strangers[-1].sendall(text)
            other = self.node(1, "-n", "1", "true", env={"DTRAIN_JOB_TOKEN": secret})
            self.assertEqual(self.ends(launcher, other), [0, 0], launcher.err)
            for stranger in strangers:
                stranger.close()

    @unittest.skipIf(os.geteuid() != 0, "needs root: to be another user")
    def test_another_user_is_not_even_greeted(self):
        launcher = self.node(0, "-n", "1", "true")
        wait_until(self.try_connect, "node 0").close()
        listen = f"import socket; print(socket.create_connection(('127.0.0.1', {self.port})).recv(99))"
        heard = subprocess.run(["/usr/bin/python3", "-c", listen], user=65534, capture_output=True, text=True, check=False,
                               cwd="/")
        self.assertEqual(heard.stdout, "b''\n", heard.stderr)
        self.assertEqual(self.ends(launcher, self.node(1, "-n", "1", "true")), [0, 0], launcher.err)

    def test_garbage_in_place_of_node_0_is_told(self):
        with socket.create_server(("127.0.0.1", self.port)) as server:
            process = self.node(1, "--rdzv-timeout", "1", "true")
            server.accept()[0].sendall(b"SSH-2.0-OpenSSH\r\n")
            self.assertEqual(self.ends(process), [RENDEZVOUS])


if __name__ == "__main__":
    main()
