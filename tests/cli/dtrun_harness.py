"""Runs the real dtrun, and finds by a mark in their environment all processes that came from it."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import uuid

from dtrain_harness import wait_until

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
from runs import children_of, family, marked, program_of, state_of, variable_of  # noqa: E402, F401

DTRUN = os.path.join(os.environ["DTRAIN_BINARY_DIR"], "bin", "dtrun")
# What ranks do, shell texts that find their number in RANK, and the status with which a launcher of two of them ends. Of two
# that fail, rank 1's FIFO ends with rank 0.
RANKS = {"all end well": ("exit 0", 0),
         "one fails": ("[ $RANK = 1 ] && exit 3; exec sleep 20", 3),
         "one fails, and others say so": ("mkfifo $0.fifo 2>&-; [ $RANK = 1 ] && { read line < $0.fifo; exit 3; }; "
                                          "exec 3> $0.fifo; exit 4", 3),
         "one is killed": ("[ $RANK = 1 ] && kill -9 $$; exec sleep 20", 137),
         "one gets SIGTERM": ("[ $RANK = 1 ] && kill $$; exec sleep 20", 143),
         "one is stopped": ("[ $RANK = 1 ] && kill -STOP $$; exec sleep 20", 5),
         "one only says that another failed": ("[ $RANK = 1 ] && exit 4; exec sleep 20", 4),
         "one saves and leaves, outside of dtrain": ("exit 9", 9)}

LIMIT = 20  # test timeout in seconds: a test needs a few, and ranks that dtrun fails to terminate sleep for 30


def number_of_gpus():
    """Counts NVIDIA's GPUs, as its driver tells."""
    return (len(list(pathlib.Path("/proc/driver/nvidia/gpus").glob("*"))) or
            len(list(pathlib.Path("/dev").glob("nvidia[0-9]*"))))


class DtrunTest(unittest.TestCase):
    limit = LIMIT

    def setUp(self):
        self.mark = "DTRUN_TEST_MARK=" + uuid.uuid4().hex
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "tmp").mkdir()
        self.addCleanup(self.kill_survivors)

    def environment(self, **more):
        name, _, value = self.mark.partition("=")
        # The mark must reach the ranks, and dtrun keeps names that begin with DTRUN_ to itself.
        environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
        environment.update({"X_" + name: value, "TMPDIR": str(self.folder / "tmp")}, **more)
        return environment

    def start(self, *arguments, env=None, under=(), **options):
        """dtrun with pipes for its streams; under: a command that runs it, such as strace."""
        options.setdefault("stdin", subprocess.DEVNULL)
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        return subprocess.Popen([*under, DTRUN, *arguments], env=self.environment(**(env or {})),
                                cwd=self.folder, text=True, **options)

    def dtrun(self, *arguments, env=None, status=None, **options):
        """A dtrun that has ended, with `status` (any, if None), and left nothing."""
        process = self.start(*arguments, env=env, **options)
        process.out, process.err = process.communicate(timeout=self.limit)
        self.assert_nothing_left()
        if status is not None:
            self.assertEqual(status, process.returncode, process.err)
        return process

    def refused(self, status, *arguments, env=None):
        """The one line of a dtrun that starts no rank."""
        process = self.dtrun(*arguments, env=env, status=status)
        self.assertEqual(1, len(process.err.splitlines()), process.err)
        self.assertTrue(process.err.startswith("dtrun: error: "), process.err)
        self.assertEqual("", process.out)
        return process.err

    def attach(self, pid, *rules):
        """strace with these rules on a process that runs; skips the test where that is not allowed."""
        tracer = subprocess.Popen(["strace", "-o", "/dev/null", *rules, "-p", str(pid)], stderr=subprocess.PIPE, text=True)
        self.addCleanup(tracer.communicate)
        self.addCleanup(tracer.kill)
        attached = tracer.stderr.readline()
        if "attached" not in attached:
            self.skipTest("needs ptrace: " + attached.strip())
        return tracer

    def marked(self):
        return [pid for pid in marked("X_" + self.mark) if pid != os.getpid()]

    def assert_nothing_left(self, limit=0.0):
        """No process of the job, and no temporary file."""
        end = time.monotonic() + limit
        while self.marked() and time.monotonic() < end:
            time.sleep(0.005)
        left = self.marked()
        names = [pathlib.Path(f"/proc/{pid}/cmdline").read_bytes() for pid in left]
        self.assertEqual([], names)
        self.assertEqual([], os.listdir(self.folder / "tmp"))

    def kill_survivors(self):
        for pid in self.marked():
            with contextlib.suppress(ProcessLookupError):  # the others' end may have been its own
                os.kill(pid, signal.SIGKILL)

    def shell(self, text, *options, ranks=2):
        """Arguments that run a shell text on each rank."""
        return ("-n", str(ranks), *options, "--", "sh", "-c", text)

    def wait_for_files(self, *names):
        for name in names:
            wait_until((self.folder / name).exists, "file " + name)


def main():
    sys.exit(0 if unittest.main(exit=False).result.wasSuccessful() else 1)
