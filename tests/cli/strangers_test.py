"""Strangers at the sockets of a job of two nodes: scripts/soak_attack.py once, and what is open while the ranks train."""

import subprocess
import sys
import unittest

from dtrain_harness import DTRUN, SOURCE
from rendezvous_test import LISTENING, RendezvousTest, processes_below, sockets_of, tcp_rows, unix_listeners
from train_test import wait_until


class Strangers(RendezvousTest):
    def test_another_user_and_a_launcher_with_a_wrong_secret_have_no_effect(self):
        attack = subprocess.run([sys.executable, SOURCE / "scripts" / "soak_attack.py", "--starts", "1", "--way", "by_nodes"],
                                capture_output=True, text=True, timeout=120, check=False)
        if attack.returncode == 77:
            self.skipTest("needs root: to be another user")
        self.assertEqual(0, attack.returncode, attack.stdout + attack.stderr)

    def test_nothing_listens_while_two_nodes_train_on_one_machine(self):
        job = self.start([DTRUN, "--emulate-nodes", "2", "-n", "1", "--",
                          *self.ddp_command("--log-every", "1", steps=1_000_000)])
        wait_until(lambda: self.has_trained() or job.poll() is not None, "a step")
        held = {inode for pid in processes_below(job.pid) for inode in sockets_of(pid)}
        tcp, unix = tcp_rows(), unix_listeners()
        job.terminate()
        self.end_of(job, 9)
        self.assertGreater(len(held & set(tcp)), 0)  # the launchers' channel
        self.assertEqual([], [tcp[inode] for inode in held & set(tcp) if tcp[inode][2] == LISTENING])
        # By this name a dtrun says whose MASTER_PORT is; it answers with its process id.
        self.assertEqual([], [unix[inode] for inode in held & set(unix) if not unix[inode].startswith("@dtrun-port-")])


if __name__ == "__main__":
    unittest.main()
