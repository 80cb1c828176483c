"""dtrain under other launchers. mpirun: the plugin for MPI has the bits of the other backends, and what fails says so and ends all.
torchrun, which keeps MASTER_PORT for its own store; and a program of torch.distributed under dtrun."""

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import unittest

from dtrain_harness import BUILD, DTRAIN, DTRUN, PYTHON, final_model, free_port, wait_until
from dtrun_harness import family, program_of
from messages import assert_names
from rendezvous_test import RendezvousTest
from two_hosts import TwoHosts, why_not

MPIRUN = ["mpirun", "--oversubscribe", "--bind-to", "none", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]
# Starts a daemon of mpirun "on another host": this one under another name.
ELSEWHERE = """#!/bin/sh
host=$1
shift
exec unshare --uts sh -c 'hostname "$1"; shift; exec sh -c "$*"' sh "$host" "$@"
"""
PLUGIN = BUILD / "lib" / "libdtrain_mpi.so"
NO_PLUGIN = "needs the release build: without sanitizers"
STRATEGIES = {
    "ddp": (2, "--strategy", "ddp", "--microbatch", "1"),
    "fsdp": (4, "--strategy", "fsdp", "--microbatch", "1"),
    "pp": (2, "--strategy", "pp"),
}


class Mpirun(RendezvousTest):
    def mpi_command(self, ranks, *flags, **options):
        return [*MPIRUN, "-n", str(ranks), *map(str, [DTRAIN, *self.arguments(*flags, **options)])]

    def start_mpi(self, ranks, *flags, variables=None, **options):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MASTER_")}
        return self.start(self.mpi_command(ranks, *flags, **options), env={**environment, **(variables or {})})

    def train(self, ranks, *flags, status=0, **options):
        return self.end_of(self.start_mpi(ranks, *flags, **options), status)

    def ranks_of(self, job):
        return sorted(pid for pid in family(job.pid) if program_of(pid) == "dtrain")


class WithoutThePlugin(Mpirun):
    def test_ranks_of_one_machine_rendezvous_without_an_address(self):
        for backend, used in (("gloo", "gloo"), ("auto", "shm")):
            with self.subTest(backend):
                run_dir = self.root / f"meets-{backend}"
                self.train(2, "--strategy", "ddp", "--backend", backend, run_dir=run_dir)
                self.assertEqual(self.metrics(run_dir)[0]["backend"], used)

    def test_a_missing_plugin_is_one_line_that_names_the_file(self):
        folder = self.root / "without"
        (folder / "bin").mkdir(parents=True)
        (folder / "lib").mkdir()
        shutil.copy(DTRAIN, folder / "bin")
        for file in (BUILD / "lib").glob("libdtrain.so*"):
            shutil.copy(file, folder / "lib")
        torch = os.pathsep.join(str(p) for p in pathlib.Path(os.environ["DTRAIN_SOURCE_DIR"], ".deps").rglob("torch/lib"))
        command = [str(folder / "bin" / "dtrain"), *map(str, self.arguments("--strategy", "ddp", "--backend", "mpi"))]
        job = self.start([*MPIRUN, "-n", "2", *command], env={**os.environ, "LD_LIBRARY_PATH": torch})
        error = self.end_of(job, 2)
        self.assertRegex(error, r"--backend mpi: cannot load .*/without/lib/libdtrain_mpi\.so: .*libopenmpi")


@unittest.skipIf(BUILD.name == "asan", NO_PLUGIN)
class Training(Mpirun):
    def test_all_strategies_equal_other_backends_bit_for_bit(self):
        for name, (ranks, *flags) in STRATEGIES.items():
            with self.subTest(name):
                by_mpi, by_shm = self.root / f"{name}-mpi", self.root / f"{name}-shm"
                self.train(ranks, *flags, "--backend", "mpi", run_dir=by_mpi)
                if name == "fsdp":  # has the bits of ddp on any number of ranks
                    by_shm = self.root / "ddp-shm"
                else:
                    self.run_command([str(word) for word in (DTRUN, "-n", ranks, "--", DTRAIN,
                                                             *self.arguments(*flags, run_dir=by_shm))])
                mine, theirs = self.metrics(by_mpi), self.metrics(by_shm)
                self.assertEqual(mine[0]["backend"], "mpi")
                self.assertEqual([line.get("loss") for line in mine], [line.get("loss") for line in theirs])
                self.assertEqual(final_model(by_mpi).read_bytes(), final_model(by_shm).read_bytes())

    @unittest.skipIf(os.geteuid() != 0, "needs root: to give a process another host's name")
    def test_hosts_of_different_numbers_of_ranks_need_no_address(self):
        agent = self.root / "elsewhere"
        agent.write_text(ELSEWHERE)
        agent.chmod(0o755)
        hosts = ["--host", f"{socket.gethostname()}:2,elsewhere:1", "--mca", "plm_rsh_agent", str(agent)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MASTER_")}
        result = subprocess.run([*MPIRUN, *hosts, "-n", "3", str(DTRAIN), "doctor", "--backend", "mpi", "--threads", "1"],
                                env=environment, capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn(f"hosts           {socket.gethostname()} (ranks 0-1); elsewhere (rank 2)\n", result.stdout)
        self.assertRegex(result.stdout, r"rendezvous      through MPI, in [\d.]+ s; backend mpi\n")

    def test_fast_reductions_and_16_bits_train(self):
        self.train(2, "--strategy", "ddp", "--backend", "mpi", "--reduction", "fast", "--dtype", "bfloat16")
        losses = [line["loss"] for line in self.metrics() if "loss" in line]
        self.assertLess(losses[-1], losses[0])


@unittest.skipIf(BUILD.name == "asan", NO_PLUGIN)
class Failures(Mpirun):
    def endless(self, *flags):
        job = self.start_mpi(2, "--strategy", "ddp", "--backend", "mpi", "--log-every", "1", *flags, steps=1_000_000)
        wait_until(lambda: self.has_trained() or job.poll() is not None, "a step")
        self.assertIsNone(job.poll(), job.poll() is not None and job.stderr.read())
        ranks = self.ranks_of(job)
        self.assertEqual(len(ranks), 2)
        return job, ranks

    def check_gone(self, ranks):
        wait_until(lambda: not any(pathlib.Path(f"/proc/{pid}").exists() for pid in ranks), "the end of all ranks")

    def test_processes_that_mpirun_did_not_start_are_rejected(self):
        result = subprocess.run([str(word) for word in (DTRUN, "-n", "2", "--", DTRAIN, *self.arguments(
            "--strategy", "ddp", "--backend", "mpi"))], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertRegex(result.stderr, r"--backend mpi: rank \d of 2 .*mpirun.*mpirun -n N")

    def test_a_bad_setting_is_mpiruns_status(self):
        error = self.train(2, "--strategy", "ddp", "--backend", "mpi", "--steps", "0x", status=2)
        self.assertIn("--steps", error)

    def test_a_killed_rank_ends_the_job(self):
        job, ranks = self.endless()
        os.kill(ranks[1], signal.SIGKILL)
        self.end_of(job, 128 + signal.SIGKILL)
        self.check_gone(ranks)

    def test_a_stopped_rank_is_seen_within_the_limit(self):
        job, ranks = self.endless("--comm-timeout", "2")
        os.kill(ranks[1], signal.SIGSTOP)
        error = self.end_of(job, 5)
        assert_names(error, "2.0 s", "--comm-timeout")
        self.check_gone(ranks)

    def test_a_rank_that_fails_gives_its_status(self):
        error = self.train(2, "--strategy", "ddp", "--backend", "mpi", "--lr", "1e30",
                           status=7)
        self.assertRegex(error, "dtrain: error: .*(loss|grad|finite)")


WHY_NOT = why_not()

# Connects the ranks, adds their numbers and prints the sum.
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

    def torchrun(self, *words):
        return [str(PYTHON), "-m", "torch.distributed.run", *words, "--no-python"]

    def command(self, *words):
        return [*self.torchrun(*words), *self.ddp_command("--comm-timeout", "30")]

    def check_run(self, agents, backend):
        for agent in agents:
            self.end_of(agent)
        self.assertEqual(final_model(self.run_dir).read_bytes(), final_model(self.plain).read_bytes())
        self.assertEqual(self.metrics()[0]["backend"], backend)

    def test_ranks_under_torchrun_train_bit_for_bit_as_under_dtrun(self):
        self.check_run([self.start(self.command("--nproc-per-node", "2", "--master-port", str(free_port())))], "shm")

    def test_a_torchrun_that_serves_no_store_runs_within_a_rank_of_dtrun(self):
        # torchrun closes dtrun's descriptors, but passes on their variables.
        words = ["env", "-u", "DTRUN_CONTROL_FD",
                 *self.command("--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2")]
        environment = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
        self.check_run([self.start([DTRUN, "-n", "1", "--", *words], env=environment)], "shm")

    def test_the_doctor_reports_the_rendezvous_address(self):
        port = free_port()
        result = subprocess.run([*self.torchrun("--nproc-per-node", "2", "--master-port", str(port)), str(DTRAIN), "doctor",
                                 "--threads", "1"], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, rf"rendezvous +.*rank 0, .*torchrun.* port {port}, in ")

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
