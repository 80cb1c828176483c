"""Training on a real SLURM of two nodes: nothing but srun's own flags, munge for trust, statuses, requeue and resume."""

import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import time
import unittest

from dtrain_harness import BUILD, DTRAIN, DTRUN, SOURCE, final_model, launched, make_folder, run

sys.path.insert(0, str(SOURCE / "tests" / "support"))
from slurm_cluster import NODES, SlurmCluster, missing  # noqa: E402

LIMIT = 60  # seconds after which a test has failed; none needs more than a few
TINY = ["--levels", "1", "--width", "32", "--heads", "2", "--neurons", "64", "--seq-len", "32", "--global-batch", "4",
        "--microbatch", "1", "--threads", "1", "--strategy", "ddp"]
# Runs a command where there is no munge.
WITHOUT_MUNGE = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /run/munge && exec "$@"', "sh")
# Comes to a store as rank 3 and does all that one can without its secret; prints what munge says of the credential.
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
    assert greeting == b"dtrain/1", greeting
    size = struct.unpack("<Q", peer.recv(8, socket.MSG_WAITALL))[0]
    offer = peer.recv(size, socket.MSG_WAITALL)
    assert struct.unpack("<Q", offer[:8])[0] == 4, offer
    credential = offer[offer.index(b"MUNGE:"):]
    print(subprocess.run(["unmunge"], input=credential, capture_output=True).stderr.decode())
    peer.sendall(text(text(b"x" * 32) + number(3) + number(4) + text(b"y" * 32)))
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
    peer.sendall(b"dtrain/1" + text(struct.pack("<Q", 4) + text(b"x" * 32) + text(credential)))
    peer.recv(1)
"""
SEVERAL_NODES = "--node-rank" in run(DTRUN, "--help").stdout
cluster = None
root = None


def setUpModule():
    global cluster, root
    if missing():
        raise unittest.SkipTest("NO TEST OF SLURM: " + missing())
    root = make_folder(unittest)
    root.chmod(0o755)
    (root / "text").write_bytes(run("bible", "-f", "gen1:1-gen20:18").stdout.encode())
    cluster = SlurmCluster().start()
    unittest.addModuleCleanup(cluster.stop)


def wait_until(condition, what, limit=LIMIT):
    end = time.monotonic() + limit
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError("waited in vain for " + what)
        time.sleep(0.02)
    return value


class SlurmTest(unittest.TestCase):
    def setUp(self):
        self.run_dir = root / self.id().rsplit(".", 1)[-1]
        self.addCleanup(self.assert_nothing_left)

    def assert_nothing_left(self):
        subprocess.run(cluster.words("scancel", "--quiet", "--user=root"), env=cluster.environment(), check=False)
        wait_until(lambda: not cluster.processes(), f"the end of {cluster.processes()}", limit=10)

    def start(self, *words, host="login", **environment):
        return subprocess.Popen(cluster.words(*words, host=host), env=cluster.environment(**environment), cwd=root, text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, errors="replace")

    def call(self, *words, status=0, **options):
        process = self.start(*words, **options)
        process.out, process.err = process.communicate(timeout=LIMIT)
        if status is not None:
            self.assertEqual(status, process.returncode, process.out + process.err)
        return process

    def flags(self, *more, steps=3, run_dir=None):
        return [*TINY, "--data", root / "text", "--steps", str(steps), "--run-dir", run_dir or self.run_dir, *more]

    def signal_step(self, signal):
        """To the tasks of all running steps, as a time limit does."""
        job = self.call("squeue", "-ho", "%A").out.split()[0]
        self.call("scancel", "--signal=" + signal, job)

    def wait_for_line(self, path, pattern):
        return wait_until(lambda: path.exists() and re.search(pattern, path.read_text()), f"{pattern} in {path}")

    def bits_of_one_machine(self, steps):
        """The model that four ranks of one machine train."""
        run_dir = root / f"one-machine-{steps}"
        if not run_dir.exists():
            run(*launched(4, *self.flags(steps=steps, run_dir=run_dir)))
        return final_model(run_dir).read_bytes()


class RanksTest(SlurmTest):
    """srun starts the ranks."""

    def srun(self, *words, status=0, **environment):
        return self.call("srun", "--nodes=2", "--ntasks-per-node=2", *words, status=status, **environment)

    def test_two_nodes_train_with_the_bits_of_one(self):
        result = self.srun(DTRAIN, *self.flags())
        self.assertIn("gloo of cpu", result.err)
        self.assertEqual(self.bits_of_one_machine(3), final_model(self.run_dir).read_bytes())

    def test_one_node_needs_no_network(self):
        result = self.call("srun", "--nodes=1", "--ntasks=2", DTRAIN, *self.flags())
        self.assertIn("shm of cpu", result.err)

    def test_a_secret_serves_where_there_is_no_munge(self):
        self.srun(*WITHOUT_MUNGE, DTRAIN, *self.flags(), MASTER_ADDR=NODES["n1"], DTRAIN_JOB_TOKEN="0123456789abcdef")
        self.assertEqual(self.bits_of_one_machine(3), final_model(self.run_dir).read_bytes())

    def test_neither_secret_nor_munge(self):
        result = self.srun("-K1", *WITHOUT_MUNGE, DTRAIN, *self.flags(), status=None, MASTER_ADDR=NODES["n1"])
        self.assertNotEqual(0, result.returncode)
        self.assertRegex(result.err, r"dtrain: error: the store at \S+:\d+ is on another machine, where ranks must know each "
                                     r"other by munge \(munge: [^)]*\) or by a secret; give every rank the same DTRAIN_JOB_TOKEN")

    def test_munge_on_one_node_alone(self):
        task = 'if [ $SLURM_NODEID = $BARE ]; then mount -t tmpfs none /run/munge; fi; exec "$@"'
        for bare, expected in (("0", "by munge .which answers here, but not rank 0"), ("1", "relies on munge, which does not help this rank .munge: ")):
            with self.subTest(bare=bare):
                result = self.srun("-K1", "unshare", "--mount", "sh", "-c", task, "sh", DTRAIN, *self.flags(), status=None,
                                   MASTER_ADDR=NODES["n1"], BARE=bare)
                self.assertNotEqual(0, result.returncode)
                self.assertRegex(result.err, "dtrain: error: .*" + expected)

    def test_a_node_whose_address_nobody_knows(self):
        result = self.srun("-K1", "env", f"PATH={BUILD}/bin", DTRAIN, *self.flags(), status=None)
        self.assertRegex(result.err, r"dtrain: error: the ranks meet on n1, the first node of this step, but its address is "
                                     r"unknown here: [^\n]*scontrol[^\n]*; set MASTER_ADDR")
        self.assertFalse(self.run_dir.exists())


    def test_strangers_at_the_store_have_no_effect(self):
        """Garbage, an oversized message, and another user who knows all but the secret in munge's credential."""
        late = 'if [ $SLURM_PROCID = 3 ]; then while [ ! -e "$GATE" ]; do sleep 0.05; done; fi; exec "$@"'
        gate, port_file = root / "gate", root / "port"
        step = self.start("srun", "--nodes=2", "--ntasks-per-node=2", "sh", "-c", late, "sh", DTRAIN, *self.flags(),
                          GATE=str(gate), MASTER_PORT="23451")
        stranger = self.call("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", sys.executable, "-c", STRANGER,
                             NODES["n1"], "23451", host="n2")
        gate.touch()
        step.out, step.err = step.communicate(timeout=LIMIT)
        self.assertEqual(0, step.returncode, step.err)
        self.assertEqual("Unauthorized", re.search("Unauthorized", stranger.out)[0], stranger.out)
        self.assertEqual(self.bits_of_one_machine(3), final_model(self.run_dir).read_bytes())

    def test_a_store_of_another_user_is_refused(self):
        """It names itself munge's, with a credential that the other user may make for everybody."""
        self.start("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", sys.executable, "-c", ROGUE_STORE,
                   NODES["n2"], "23452", host="n2")
        result = self.call("srun", "--nodes=2", "--ntasks-per-node=1", "-K1", "sh", "-c",
                           'if [ $SLURM_PROCID = 0 ]; then exec sleep 30; fi; exec "$@"', "sh", DTRAIN, *self.flags(),
                           status=None, MASTER_ADDR=NODES["n2"], MASTER_PORT="23452")
        self.assertRegex(result.err, r"dtrain: error: the store at \S+ relies on munge, .*it is of user 65534, not 0")


if __name__ == "__main__":
    sys.exit(0 if unittest.main(exit=False).result.wasSuccessful() else 1)
