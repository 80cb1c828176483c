"""Strangers at the sockets of a job of two nodes: scripts/soak_attack.py once, and what is open while the ranks train."""

import pathlib
import subprocess
import sys
import unittest

from dtrain_harness import DTRUN, SOURCE
from dtrun_nodes_harness import LISTEN
from rendezvous_test import LISTENING, RendezvousTest, processes_below, sockets_of, tcp_rows, unix_listeners
from train_test import wait_until


class Strangers(RendezvousTest):
    def test_another_user_and_a_launcher_with_a_wrong_secret_have_no_effect(self):
        attack = subprocess.run([sys.executable, SOURCE / "scripts" / "soak_attack.py", "--starts", "1", "--way", "by_nodes"],
                                capture_output=True, text=True, timeout=120, check=False)
        if attack.returncode == 77:
            self.skipTest("needs root: to be another user")
        self.assertEqual(0, attack.returncode, attack.stdout + attack.stderr)

    def test_who_listens_at_master_port_does_not_end_a_job_of_two_nodes(self):
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
        sockets = {pid: set(sockets_of(pid)) for pid in processes_below(job.pid)}
        held = set().union(*sockets.values())
        tcp, unix = tcp_rows(), unix_listeners()
        listening = {inode for inode in held & set(tcp) if tcp[inode][2] == LISTENING}
        holders = [pathlib.Path(f"/proc/{pid}/comm").read_text().strip() for pid, own in sockets.items() if own & listening]
        job.terminate()
        self.end_of(job, 9)
        self.assertGreater(len(held & set(tcp)), 0)  # the launchers' channel
        self.assertEqual((len(listening), holders), (1, ["dtrun-ranks"]))
        # By this name a dtrun says whose MASTER_PORT is; it answers with its process id.
        self.assertEqual([], [unix[inode] for inode in held & set(unix) if not unix[inode].startswith("@dtrun-port-")])


if __name__ == "__main__":
    unittest.main()
