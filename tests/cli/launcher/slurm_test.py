"""Training on a real SLURM cluster of two nodes: plain srun flags, authentication by munge, statuses, requeue and resume."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import unittest

from documents_harness import fences_of
from dtrain_harness import CONSTANT_RATE
from dtrain_harness import BUILD, DTRAIN, DTRUN, SOURCE, final_model, make_folder, overriding, paths_of, run, terminal_output, wait_until
from dtrun_harness import RANKS, children_of, program_of, variable_of

sys.path.insert(0, str(SOURCE / "tests" / "support"))
from messages import assert_names  # noqa: E402
from slurm_cluster import NODES, SlurmCluster  # noqa: E402

LIMIT = 120  # seconds after which a test has failed; none needs more than a few
TINY = [*CONSTANT_RATE, "--layers", "1", "--width", "32", "--heads", "2", "--neurons", "64", "--seq-len", "32", "--global-batch", "4",
        "--microbatch", "1", "--threads", "1", "--strategy", "ddp"]
# Runs a command without access to munge.
WITHOUT_MUNGE = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /run/munge && exec "$@"', "sh")
# Connects to a store as rank 1 of 2 without the secret; prints what munge says of the credential.
STRANGER = """
import socket, struct, subprocess, sys, time
def meet():
    end = time.monotonic() + 20
    while True:
        try:
            return socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
text = lambda value: struct.pack("<Q", len(value)) + value
number = lambda value: struct.pack("<Q", value)
with meet() as peer:
    greeting = peer.recv(8)
    assert greeting == b"dtrain/3", greeting
    size = struct.unpack("<Q", peer.recv(8, socket.MSG_WAITALL))[0]
    offer = peer.recv(size, socket.MSG_WAITALL)
    assert struct.unpack("<Q", offer[:8])[0] == 4, offer
    credential = offer[offer.index(b"MUNGE:"):]
    print(subprocess.run(["unmunge"], input=credential, capture_output=True).stderr.decode())
    peer.sendall(text(text(b"x" * 32) + text(number(1) + number(2)) + text(b"y" * 32)))
    print(peer.recv(100))
for junk in (b"GET / HTTP/1.0", b"\\xff" * 4096, number(1 << 40)):
    with meet() as peer:
        try:
            peer.sendall(junk)
            peer.recv(1000)
        except OSError:
            pass
"""
ROGUE_STORE = """
import socket, struct, subprocess, sys
text = lambda value: struct.pack("<Q", len(value)) + value
with socket.create_server((sys.argv[1], int(sys.argv[2]))) as server:
    peer, _ = server.accept()
    credential = subprocess.run(["munge", "-s", "a secret that everybody knows"], capture_output=True).stdout.strip()
    peer.sendall(b"dtrain/3" + text(struct.pack("<Q", 4) + text(b"x" * 32) + text(credential)))
    peer.recv(1)
"""
cluster = None
root = None


def setUpModule():
    global cluster, root
    if os.geteuid() != 0:
        raise unittest.SkipTest("needs root: to start a SLURM cluster")
    root = make_folder(unittest)
    root.chmod(0o755)
    (root / "text").write_bytes(run("bible", "-f", "gen1:1-gen20:18").stdout.encode())
    cluster = SlurmCluster().start()
    unittest.addModuleCleanup(cluster.stop)


def ended_by_one():
    """The end of srun's options for a step that one task's failure ends: what tasks print to srun may be lost then, files are not."""
    return ("-K1", "sh", "-c", f'exec "$@" 2> {root}/errors.$SLURM_PROCID', "sh")


class SlurmTest(unittest.TestCase):
    def setUp(self):
        self.run_dir = root / self.id().split(".", 1)[-1]
        self.addCleanup(self.assert_nothing_left)

    def assert_nothing_left(self):
        subprocess.run(cluster.words("scancel", "--quiet", "--user=root"), env=cluster.environment(), check=False)
        wait_until(lambda: not cluster.processes(), f"the end of {cluster.processes()}", limit=60)

    def start(self, *words, host="login", **environment):
        return subprocess.Popen(cluster.words(*words, host=host), env=cluster.environment(**environment), cwd=root, text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, errors="replace")

    def call(self, *words, status=0, **options):
        process = self.start(*words, **options)
        try:
            process.out, process.err = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            state = [subprocess.run(cluster.words(*show), env=cluster.environment(), capture_output=True, text=True).stdout
                     for show in (("squeue", "--long"), ("sinfo", "--Node", "--long"))]
            raise AssertionError(f"{words} did not end in time: {state}, {cluster.processes()}") from None
        for errors in sorted(root.glob("errors.*")):
            process.err += errors.read_text(errors="replace")
            errors.unlink()
        if status is not None:
            self.assertEqual(status, process.returncode, process.out + process.err)
        return process

    def flags(self, *more, steps=3, run_dir=None):
        flags = overriding([*TINY, "--data", root / "text", "--steps", str(steps)], *more)
        return [*flags, "--run-dir", run_dir or self.run_dir]

    def submit(self, script, *options, arguments=(), **environment):
        """The number of the batch job."""
        return self.call("sbatch", "--parsable", *options, script, *arguments, **environment).out.strip()

    def status_of(self, job):
        """Waits until the job has ended for good."""
        def shown():
            time.sleep(0.1)  # between looks, which start programs
            return re.search(r"JobState=(COMPLETED|FAILED) .* ExitCode=(\d+):0", self.call("scontrol", "--oneliner", "show", "job", job).out)
        return int(wait_until(shown, f"the end of {job}", LIMIT)[2])

    def wait_for_line(self, path, pattern):
        return wait_until(lambda: path.exists() and re.search(pattern, path.read_text()), f"{pattern} in {path}", LIMIT)

    def bits_of_one_process(self, steps):
        """The model that a single process trains, and so any number of ranks."""
        run_dir = root / f"one-process-{steps}"
        if not run_dir.exists():
            run(DTRAIN, *self.flags("--strategy", "single", steps=steps, run_dir=run_dir))
        return final_model(run_dir).read_bytes()


class RanksTest(SlurmTest):
    """srun starts the ranks; DocumentsTest starts several per node."""

    def srun(self, *words, status=0, **environment):
        return self.call("srun", "--nodes=2", "--ntasks-per-node=1", *words, status=status, **environment)

    def test_pmi2_changes_nothing_and_the_doctor_says_where_they_met(self):
        result = self.srun("--mpi=pmi2", DTRAIN, "doctor", "--threads", "1")
        self.assertRegex(result.out, r"ranks +2, by SLURM_PROCID\n")
        self.assertRegex(result.out, rf"rendezvous +at {NODES['n1']} port 2\d{{4}}, in [\d.]+ s; backend gloo\n")

    def test_one_node_needs_no_network(self):
        result = self.call("srun", "--nodes=1", "--ntasks=2", DTRAIN, *self.flags())
        self.assertIn("backend shm, device cpu", result.err)

    def test_a_secret_serves_where_there_is_no_munge(self):
        self.srun(*WITHOUT_MUNGE, DTRAIN, *self.flags(), MASTER_ADDR=NODES["n1"], DTRAIN_JOB_TOKEN="0123456789abcdef")
        self.assertEqual(self.bits_of_one_process(3), final_model(self.run_dir).read_bytes())

    def test_neither_secret_nor_munge(self):
        result = self.srun(*ended_by_one(), *WITHOUT_MUNGE, DTRAIN, *self.flags(), status=None, MASTER_ADDR=NODES["n1"])
        self.assertNotEqual(0, result.returncode)
        assert_names(result.err, "dtrain: error", "munge", "DTRAIN_JOB_TOKEN")

    def test_munge_on_one_node_alone(self):
        task = 'if [ $SLURM_NODEID = $BARE ]; then mount -t tmpfs none /run/munge; fi; exec "$@"'
        for bare in "01":
            with self.subTest(bare=bare):
                result = self.srun(*ended_by_one(), "unshare", "--mount", "sh", "-c", task, "sh", DTRAIN, *self.flags(), status=None,
                                   MASTER_ADDR=NODES["n1"], BARE=bare)
                self.assertNotEqual(0, result.returncode)
                self.assertRegex(result.err, "dtrain: error: .*munge")

    def test_a_node_whose_address_nobody_knows(self):
        result = self.srun(*ended_by_one(), "env", f"PATH={BUILD}/bin", DTRAIN, *self.flags(), status=None)
        assert_names(result.err, "dtrain: error", "n1", "scontrol", "MASTER_ADDR")
        self.assertFalse(self.run_dir.exists())

    def test_strangers_at_the_store_have_no_effect(self):
        """Sends garbage, an oversized message, and a hello of another user that lacks only the secret in munge's credential."""
        late = 'if [ $SLURM_PROCID = 1 ]; then while [ ! -e "$GATE" ]; do sleep 0.05; done; fi; exec "$@"'
        gate = root / "gate"
        step = self.start("srun", "--nodes=2", "--ntasks-per-node=1", "sh", "-c", late, "sh", DTRAIN, *self.flags(),
                          GATE=str(gate), MASTER_PORT="23451")
        stranger = self.call("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", sys.executable, "-c", STRANGER,
                             NODES["n1"], "23451", host="n2")
        gate.touch()
        step.out, step.err = step.communicate(timeout=LIMIT)
        self.assertEqual(0, step.returncode, step.err)
        self.assertEqual("Unauthorized", re.search("Unauthorized", stranger.out)[0], stranger.out)
        self.assertEqual(self.bits_of_one_process(3), final_model(self.run_dir).read_bytes())

    def test_a_store_of_another_user_is_refused(self):
        """It claims to authenticate by munge, with a credential that the other user created for everybody."""
        self.start("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", sys.executable, "-c", ROGUE_STORE,
                   NODES["n2"], "23452", host="n2")
        result = self.call("srun", "--nodes=2", "--ntasks-per-node=1", *ended_by_one(), "sh", "-c",
                           'if [ $SLURM_PROCID = 0 ]; then exec sleep 30; fi; exec "$@"', "sh", DTRAIN, *self.flags(),
                           status=None, MASTER_ADDR=NODES["n2"], MASTER_PORT="23452")
        assert_names(result.err, "dtrain: error", "munge", "user 65534", "0")


class LaunchersTest(SlurmTest):
    """srun starts a dtrun on each node."""

    def srun(self, *words, cores=2, **options):
        return self.call("srun", "--nodes=2", "--ntasks-per-node=1", f"--cpus-per-task={cores}", DTRUN, *words, **options)

    def test_ranks_follow_the_step_unless_told_otherwise(self):
        show = ("--", "sh", "-c", "echo $RANK of $WORLD_SIZE on $(hostname)")
        everywhere = [f"{rank} of 4 on n{rank // 2 + 1}" for rank in range(4)]
        self.assertEqual(everywhere, sorted(line.split("] ")[-1] for line in self.srun(*show).out.splitlines()))
        lines = self.srun("-n1", *show).out.splitlines()
        self.assertEqual(["0 of 2 on n1", "1 of 2 on n2"], sorted(line.split("] ")[-1] for line in lines))
        lines = self.srun("--standalone", *show).out.splitlines()
        self.assertEqual(["0 of 1 on n1", "0 of 1 on n2"], sorted(lines))

    def test_several_dtruns_on_a_node_are_refused(self):
        result = self.call("srun", "--nodes=2", "--ntasks=4", DTRUN, "--", "true", status=2)
        self.assertIn("srun started 4 dtruns on 2 nodes; give it --ntasks-per-node=1", result.err)

    def test_neither_secret_nor_munge(self):
        result = self.call("srun", "--nodes=2", "--ntasks-per-node=1", *ended_by_one(), *WITHOUT_MUNGE, DTRUN, "--", "true",
                           status=None, MASTER_ADDR=NODES["n1"])
        self.assertNotEqual(0, result.returncode)
        assert_names(result.err, "node 0", "munge", "secret")


class ShellTest(SlurmTest):
    """`srun --pty bash`: a step of several tasks, one of which has the terminal."""

    def typed(self, *srun, lines):
        """The terminal's output for these lines and an exit."""
        master, slave = pty.openpty()
        shell = subprocess.Popen(cluster.words("srun", *srun, "--pty", "bash", "--norc", "-i"), env=cluster.environment(),
                                 cwd=root, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
        os.close(slave)
        seen = [b""]
        for line in (*lines, ["exit"]):
            while not seen[-1].rstrip().endswith(b"#"):  # the prompt
                self.assertTrue(select.select([master], [], [], LIMIT)[0], b"".join(seen))
                seen.append(os.read(master, 65536))
            seen.append(b"")
            os.write(master, f"{' '.join(map(str, line))}\n".encode())
        output = b"".join(seen) + terminal_output(master)
        shell.wait(LIMIT)
        return output.decode()

    def test_a_command_is_a_separate_job(self):
        alone, both = root / "typed-alone", root / "typed-both"
        flags = self.flags()[:-2]
        flags = [*flags[:flags.index("--strategy")], *flags[flags.index("--strategy") + 2:], "--val-fraction", "0"]
        launcher, show = [DTRUN, "-n", "2", "--"], ["sh", "-c", "'echo world of $WORLD_SIZE'"]
        train = [DTRAIN, *flags, "--strategy", "ddp", "--run-dir", both]
        for srun, program in ((("--nodes=1", "--ntasks=2"), show), (("--nodes=2", "--ntasks-per-node=1"), train)):
            with self.subTest(srun):
                output = self.typed(*srun, lines=([DTRAIN, *flags, "--overwrite", "--run-dir", alone], [*launcher, *program]))
                self.assertIn("dtrun -n 2 -- dtrain", output)
                self.assertNotIn("waiting for", output)
                self.assertEqual(1, self.world_size(alone))
                if program is show:
                    self.assertEqual(2, output.count("world of 2"))
                else:
                    self.assertEqual(2, self.world_size(both))

    def world_size(self, run_dir):
        return json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[0])["world_size"]


class StatusesTest(SlurmTest):
    """Exit status of srun, and of a batch script whose last command is srun."""

    def assert_statuses(self, name, status, *words, launchers=("srun", "sbatch")):
        for launcher in launchers:
            with self.subTest(name, launcher=launcher):
                command = ["srun", "--nodes=2", "--ntasks-per-node=1", *map(str, words)]
                of = {"srun": lambda: self.call(*command, status=None).returncode, "sbatch": lambda: self.of_batch(command)}
                self.assertEqual(status, of[launcher]())

    def of_batch(self, command):
        """As SLURM records it."""
        job = self.submit(self.script("batch", "exec " + " ".join(command)), "--nodes=2", "--output=/dev/null")
        return self.status_of(job)

    def script(self, name, text):
        path = root / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    def test_of_dtrun(self):
        for number, (name, (text, status)) in enumerate(RANKS.items()):
            launchers = ("srun", "sbatch") if name in ("one fails", "one is killed", "one saves and leaves, outside of dtrain") else ("srun",)
            self.assert_statuses(name, status, DTRUN, "-n1", self.script(f"rank-{number}", text), launchers=launchers)
        self.assert_statuses("a wrong flag", 2, DTRUN, "--wrong", "true", launchers=["srun"])

    def test_of_dtrain(self):
        launchers = {"srun alone": [DTRAIN], "dtrun": [DTRUN, "-n1", "--", DTRAIN]}
        for name, program in launchers.items():
            self.run_dir = root / f"status-{len(program)}"
            self.assert_statuses(f"{name}: a wrong flag", 2, *program, "--wrong", launchers=["srun"])
            missing_data = self.flags("--data", root / "nowhere")
            self.assert_statuses(f"{name}: no data", 3, *program, *missing_data, launchers=["srun"])
            self.run_dir.mkdir()
            (self.run_dir / "STOP").touch()
            self.assert_statuses(f"{name}: saved", 0, *program, *self.flags("--checkpoint-every", "100"),
                                 launchers=["srun"])
            self.assertTrue((self.run_dir / "REQUEUE").exists())


class BatchScriptsTest(SlurmTest):
    """scripts/slurm: near the time limit the ranks save, and the job is requeued and resumes bit for bit."""

    STEPS = 300  # a job of fewer could end before its signal comes

    def test_of_srun_and_of_dtrun(self):
        undisturbed = self.bits_of_one_process(self.STEPS)
        jobs = [self.interrupted("dtrain.sbatch", "--ntasks-per-node=1"), self.interrupted("dtrun.sbatch", "--cpus-per-task=1")]
        for run_dir, job, log in jobs:
            self.assertEqual(0, self.status_of(job))
            self.assertRegex(log.read_text(), r"(?s)start 1.*start 2.*resum.*done: ")
            self.assertEqual(undisturbed, final_model(run_dir).read_bytes())

    def interrupted(self, script, *options):
        """A job that has been requeued."""
        run_dir, log = root / (script + ".run"), root / (script + ".log")
        words = self.flags("--log-every", "1", steps=self.STEPS)[:-2]  # the script adds the run folder
        job = self.submit(SOURCE / "scripts" / "slurm" / script, *options, f"--output={log}", arguments=words,
                          RUN_DIR=str(run_dir), BIN=str(BUILD / "bin"))
        self.wait_for_line(log, r"step 3/")
        self.call("scancel", "--signal=USR1", job)
        self.wait_for_line(log, "start 2")
        return run_dir, job, log

    def test_a_lost_node_puts_the_job_back_into_the_queue(self):
        run_dir, log = root / "lost.run", root / "lost.log"
        words = self.flags("--checkpoint-every", "20", steps=self.STEPS)[:-2]
        job = self.submit(SOURCE / "scripts" / "slurm" / "dtrun.sbatch", "--cpus-per-task=1", f"--output={log}", arguments=words,
                          RUN_DIR=str(run_dir), BIN=str(BUILD / "bin"))
        wait_until(lambda: any(re.fullmatch(r"step-\d+", path.name) for path in paths_of(run_dir, "checkpoints/*")), "a checkpoint", LIMIT)
        (launcher,) = self.launchers_on("n2")
        os.kill(launcher, signal.SIGKILL)
        self.wait_for_line(log, "start 2")
        self.assertEqual(0, self.status_of(job))
        self.assertRegex(log.read_text(), r"(?s)start 1.*status \d+ .*step-\d+; .*start 2.*resum.*done: ")
        self.assertEqual(self.bits_of_one_process(self.STEPS), final_model(run_dir).read_bytes())

    def launchers_on(self, host):
        """Pids, outside the cluster, of the dtruns on a node that no other dtrun has started."""
        found = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
                 if program_of(pid) == "dtrun" and variable_of(pid, "SLURMD_NODENAME") == host]
        below = {child for pid in found for child in children_of(pid)}
        return [pid for pid in found if pid not in below]

    def test_a_failure_without_a_newer_checkpoint_ends_the_job(self):
        for script in ("dtrain.sbatch", "dtrun.sbatch"):
            with self.subTest(script):
                log = root / f"failing-{script}.log"
                words = self.flags("--data", root / "nowhere")[:-2]
                job = self.submit(SOURCE / "scripts" / "slurm" / script, "--nodes=1", "--ntasks-per-node=1", f"--output={log}", arguments=words,
                                  RUN_DIR=str(root / f"failing-{script}"), BIN=str(BUILD / "bin"))
                self.assertEqual(3, self.status_of(job), log.read_text())
                self.assertEqual(1, log.read_text().count(", start "))


class LaunchScriptsTest(SlurmTest):
    """scripts/launch.sh and train_distributed.sh between two machines, without SLURM."""

    def on_both(self, script, *words, status=0, **environment):
        nodes = [self.start(SOURCE / "scripts" / script, *words, host=host, NUM_NODES="2", NODE_RANK=str(rank),
                            MASTER_ADDR=NODES["n1"], MASTER_PORT="23460",
                            **{"RANKS_PER_NODE": "2", "DTRAIN_JOB_TOKEN": "0123456789abcdef", "PATH": f"{BUILD}/bin:{os.environ['PATH']}", **environment})
                 for rank, host in enumerate(NODES)]
        outputs = [node.communicate(timeout=LIMIT) for node in nodes]
        self.assertEqual([status] * 2, [node.returncode for node in nodes], outputs)
        return [line.split("] ", 1)[-1] for output, _ in outputs for line in output.splitlines()]

    def test_any_program(self):
        lines = self.on_both("launch.sh", "sh", "-c", "echo rank $RANK of $WORLD_SIZE")
        self.assertEqual([f"rank {rank} of 4" for rank in range(4)], sorted(lines))
        self.on_both("launch.sh", "sh", "-c", "[ $RANK = 3 ] && exit 7; exec sleep 200", status=7)

    def test_training(self):
        self.on_both("train_distributed.sh", *self.flags(), RANKS_PER_NODE="1")
        self.assertEqual(self.bits_of_one_process(3), final_model(self.run_dir).read_bytes())

    def test_what_is_missing_is_named(self):
        script = SOURCE / "scripts" / "launch.sh"
        self.assertIn("usage: ", self.call(script, status=2).err)
        self.assertIn("NODE_RANK", self.call(script, "--help").out)
        result = self.call(script, "true", status=2, NUM_NODES="2", NODE_RANK="0")
        assert_names(result.err, "MASTER_ADDR")


class DocumentsTest(SlurmTest):
    """The first commands of docs/guide/clusters.md, with the nodes and CPUs of this cluster."""

    HERE = {"--nodes=4": "--nodes=2", "--ntasks-per-node=8": "--ntasks-per-node=2", "--cpus-per-task=4": "--cpus-per-task=2",
            "--cpus-per-task=32": "--cpus-per-task=4", "dtrun -n 8": "dtrun -n 2", "--config configs/experiments/25m.json": " ".join(TINY[:-2]),
            "book.dtok": "text --steps 3"}

    def test_two_nodes_train_bit_for_bit_like_one_process(self):
        """srun starts the ranks, or a dtrun on each node."""
        text = fences_of((SOURCE / "docs" / "guide" / "clusters.md").read_text())[0].text
        for word, here in self.HERE.items():
            self.assertIn(word, text)
            text = re.sub(re.escape(word) + r"(?!\d)", here, text)
        result = self.call("bash", "-ec", f"cd {root}\n{text}", PATH=f"{BUILD}/bin:{os.environ['PATH']}")
        for run_dir in ("runs/clusters-1", "runs/clusters-2"):
            config = json.loads((root / run_dir / "config.json").read_text())
            self.assertEqual((config["resolved"]["layout"]["dp"], config["provenance"]["ranks"]), (4, 4), result.err)
            self.assertEqual(self.bits_of_one_process(3), final_model(root / run_dir).read_bytes())
        self.assertEqual(2, result.err.count("backend hier, device cpu"), result.err)


if __name__ == "__main__":
    sys.exit(0 if unittest.main(exit=False).result.wasSuccessful() else 1)
