"""dtrain under torchrun, which keeps MASTER_PORT for its own store, and a program of torch.distributed under dtrun."""

import os
import subprocess
import unittest

from dtrain_harness import DTRAIN, DTRUN, PYTHON, final_model, free_port
from rendezvous_test import RendezvousTest
from two_hosts import TwoHosts, why_not

WHY_NOT = why_not()

# Meets, adds the ranks' numbers and prints the sum.
PROGRAM = """
import torch, torch.distributed
torch.distributed.init_process_group("gloo")
rank = torch.tensor([torch.distributed.get_rank() + 1])
torch.distributed.all_reduce(rank)
print("sum", int(rank))
torch.distributed.destroy_process_group()
"""


class Torchrun(RendezvousTest):
    def setUp(self):
        super().setUp()
        self.plain = self.root / "dtrun"  # one for all tests
        if not self.plain.exists():
            self.ddp(run_dir=self.plain)

    def launcher(self, *words):
        return [str(PYTHON), "-m", "torch.distributed.run", *words, "--no-python"]

    def command(self, *words):
        return [*self.launcher(*words), *self.ddp_command("--comm-timeout", "30")]

    def check_run(self, agents, backend):
        for agent in agents:
            self.end_of(agent)
        self.assertEqual(final_model(self.run_dir).read_bytes(), final_model(self.plain).read_bytes())
        self.assertEqual(self.metrics()[0]["backend"], backend)

    def test_ranks_under_torchrun_meet_and_train_with_the_bits_of_dtrun(self):
        self.check_run([self.start(self.command("--nproc-per-node", "2", "--master-port", str(free_port())))], "shm")

    def test_a_torchrun_that_serves_no_store_runs_within_a_rank_of_dtrun(self):
        # torchrun closes dtrun's descriptors, but hands on their variables.
        words = ["env", "-u", "DTRUN_CONTROL_FD",
                 *self.command("--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2")]
        environment = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
        self.check_run([self.start([DTRUN, "-n", "1", "--", *words], env=environment)], "shm")

    def test_the_doctor_says_where_they_met(self):
        port = free_port()
        result = subprocess.run([*self.launcher("--nproc-per-node", "2", "--master-port", str(port)), str(DTRAIN), "doctor",
                                 "--threads", "1"], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, rf"meeting +.*rank 0's, .*torchrun.* port {port}, in ")

    @unittest.skipIf(WHY_NOT, WHY_NOT)
    def test_ranks_under_torchrun_on_two_hosts_find_their_secret_in_its_store(self):
        hosts = TwoHosts(self, self.root)
        self.check_run([self.start(hosts.command(host, self.command(
            "--nnodes", "2", "--node-rank", str(host), "--nproc-per-node", "1", "--master-addr", "10.77.0.1",
            "--master-port", "29500"))) for host in range(2)], "gloo")

    def test_torch_distributed_runs_under_dtrun(self):
        for ranks in (("-n", "2"), ("--emulate-nodes", "2", "-n", "1")):
            result = subprocess.run([DTRUN, *ranks, "--", str(PYTHON), "-c", PROGRAM], capture_output=True,
                                    text=True, timeout=60, check=False)
            self.assertEqual((result.returncode, result.stdout.count("sum 3")), (0, 2), result.stderr)


if __name__ == "__main__":
    unittest.main()
