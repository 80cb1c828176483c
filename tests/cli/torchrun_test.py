"""dtrain under torchrun, which keeps MASTER_PORT for its own store, and a program of torch.distributed under dtrun."""

import os
import subprocess
import unittest

import reader_python
from dtrain_harness import DTRUN, final_model
from rendezvous_test import RendezvousTest, free_port

reader_python.require()

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
    def torchrun(self, *words, run_dir):
        command = [str(reader_python.PYTHON), "-m", "torch.distributed.run", *words, "--no-python",
                   *self.ddp_command("--comm-timeout", "30", run_dir=run_dir)]
        return self.start(command, env={**os.environ, "OMP_NUM_THREADS": "1"})

    def test_ranks_under_torchrun_meet_and_train_with_the_bits_of_dtrun(self):
        self.ddp(run_dir=self.root / "dtrun")
        agent = self.torchrun("--nproc-per-node", "2", "--master-port", str(free_port()), run_dir=self.root / "one")
        # Two agents are two nodes, whose ranks need a secret.
        port = str(free_port())
        nodes = [self.torchrun("--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", "1", "--master-addr",
                               "127.0.0.1", "--master-port", port, run_dir=self.root / "two") for node in range(2)]
        for process in (agent, *nodes):
            self.end_of(process)
        for name, backend in (("one", "shm"), ("two", "gloo")):
            self.assertEqual(final_model(self.root / name).read_bytes(), final_model(self.root / "dtrun").read_bytes())
            self.assertEqual(self.metrics(self.root / name)[0]["backend"], backend)

    def test_torch_distributed_runs_under_dtrun(self):
        result = subprocess.run([DTRUN, "-n", "2", "--", str(reader_python.PYTHON), "-c", PROGRAM], capture_output=True,
                                text=True, timeout=60, check=False)
        self.assertEqual((result.returncode, result.stdout.count("sum 3")), (0, 2), result.stderr)


if __name__ == "__main__":
    unittest.main()
