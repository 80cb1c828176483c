"""Regression tests of dtrun: messages between nodes that must not be lost, and requests that are withdrawn."""

import ctypes
import os
import signal
import sys
import time
import unittest

from dtrun_harness import LIMIT, DtrunTest, children_of, state_of, wait_until
from messages import assert_names, holds

# Rank 1 is asked for its position, but exits with the given status; the others save meanwhile.
LEAVES = r'''
import os, socket, sys, threading, time
rank, status = os.environ["RANK"], int(sys.argv[1])
asked = threading.Event()
link = socket.socket(fileno=int(os.environ["DTRUN_CONTROL_FD"]))
def listen():
    text = b""
    while piece := link.recv(4096):
        text += piece
        if b"abort" in text:
            os._exit(4)
        if b"records\n" in text:
            text = b""
            asked.set()
            if rank == "1":
                os._exit(status)
            link.sendall(b"where in saving after step 9\ncall 9 all_reduce 8 ended 1.0 -1 dp\nrecords-end\n")
    os._exit(4)
threading.Thread(target=listen, daemon=True).start()
link.sendall(b"progress 1 0\n")
if rank == "1":
    time.sleep(30)
while not asked.wait(0.1):
    link.sendall(b"busy\n")
for _ in range(5):
    time.sleep(0.1)
    link.sendall(b"busy\n")
os._exit(status)
'''

# Rank 1 writes more than its pipe holds and continues when the output is read; rank 0 waits for it in a call.
HELD = r'''
import os, socket, sys, threading, time
rank, go = os.environ["RANK"], sys.argv[1]
link = socket.socket(fileno=int(os.environ["DTRUN_CONTROL_FD"]))
WAITS = b"where in forward, step 3\ncall 17 all_reduce 4096 open 9.0 -1 dp\nrecords-end\n"
def listen():
    text = b""
    while piece := link.recv(4096):
        text += piece
        if b"abort" in text:
            os._exit(4)
        if b"records\n" in text:
            text = b""
            link.sendall(WAITS)
    os._exit(4)
threading.Thread(target=listen, daemon=True).start()
link.sendall(b"progress 1 1000\n")
if rank == "1":
    for _ in range(40000):
        sys.stdout.write("y" * 99 + "\n")
    sys.stdout.flush()
    open(go, "w").close()
while not os.path.exists(go):
    time.sleep(0.02)
os._exit(0)
'''

# Rank 1's output has no reader, and rank 0 times out in a call. It reports that after rank 1's pipe is full.
GAVE_UP = r'''
import os, socket, sys, time
link = socket.socket(fileno=int(os.environ["DTRUN_CONTROL_FD"]))
link.sendall(b"progress 1 1000\n")
if os.environ["RANK"] == "1":
    for _ in range(100000):
        sys.stdout.write("y" * 99 + "\n")
    time.sleep(30)
time.sleep(1)
link.sendall(b"where in forward, step 3\ncall 17 all_reduce 4096 open 9.0 -1 dp\nrecords-end\n")
sys.exit(5)
'''

# Rank 2 sends no heartbeat until its records are requested. Rank 1 sends its records later, then heartbeats. Then rank 0 exits
# with a timeout of a collective that rank 1 did not join.
LATE = r'''
import os, socket, sys, threading, time
rank, asks, answered = os.environ["RANK"], 0, threading.Event()
link = socket.socket(fileno=int(os.environ["DTRUN_CONTROL_FD"]))
def answer(where, call):
    link.sendall(f"where in {where}\ncall {call} all_reduce 8 open 1.0 -1 dp\nrecords-end\n".encode())
def listen():
    global asks
    while piece := link.recv(4096):
        if b"abort" in piece:
            os._exit(4)
        asks += 1
        if asks > 1:
            answer("C, stuck", 8) if rank == "1" else answer("A", 9)
        elif rank == "2":
            link.sendall(b"busy\n")
        else:
            time.sleep(0.2)
            answer("B", 5)
            answered.set()
    os._exit(4)
threading.Thread(target=listen, daemon=True).start()
link.sendall(b"progress 1 0\n")
while rank != "2" and not answered.wait(0.1):
    if not asks:
        link.sendall(b"busy\n")
link.sendall(b"busy\n")
if rank == "1":
    open("went-on", "w").close()
if rank == "0":
    while not os.path.exists("went-on"):
        time.sleep(0.01)
    answer("A", 9)
    sys.exit(5)
time.sleep(30)
'''

# Rank 0 fails once rank 1 is traced: dtrun sees rank 1's exit only after the tracer has waited for it.
SLOW = r'''
import ctypes, os, sys, time
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":
    sys.exit(0)
if os.environ["RANK"] == "0":
    while not os.path.exists("traced"):
        time.sleep(0.01)
    sys.exit(7)
PR_SET_PTRACER, ANY = 0x59616d61, ctypes.c_ulong(-1)
ctypes.CDLL(None).prctl(PR_SET_PTRACER, ANY, 0, 0, 0)
with open("part", "w") as file:
    file.write(str(os.getpid()))
os.rename("part", "pid")
time.sleep(60)
'''


def trace(pid):
    """Makes this process the tracer of another, so that it learns of the exit first; returns whether it may."""
    seize = 0x4206
    libc = ctypes.CDLL(None)
    libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    return libc.ptrace(seize, pid, None, None) == 0


class Faults(DtrunTest):
    def stub(self, text, *arguments):
        return "--", sys.executable, "-S", "-c", text, *arguments

    def ended(self, status, *arguments):
        process = self.dtrun(*arguments, status=status)
        return process.err

    def test_a_suspected_rank_that_exits_with_0_ends_no_other_rank(self):
        for status in (0, 9):
            with self.subTest(status=status):
                error = self.ended(status, "-n", "3", "--hang-timeout", "0.5", *self.stub(LEAVES, str(status)))
                self.assertNotIn("failed", error)

    def test_unread_output_on_one_node_is_not_a_hang_on_another(self):
        process = self.start("--emulate-nodes", "2", "-n", "1", "--hang-timeout", "0.5", *self.stub(HELD, "go"))
        time.sleep(2.5)
        _, error = process.communicate(timeout=LIMIT)
        self.assertEqual(process.returncode, 0, error)

    def test_a_rank_that_timed_out_stays_failed_under_output_back_pressure(self):
        process = self.start("--emulate-nodes", "2", "-n", "1", *self.stub(GAVE_UP))
        self.assertEqual(process.wait(timeout=LIMIT), 5)
        _, error = process.communicate()
        self.assertIn("failed: rank 0 (", error)

    def test_a_late_response_is_ignored_later(self):
        error = self.ended(5, "-n", "3", "--hang-timeout", "1.5", *self.stub(LATE))
        self.assertRegex(error, r"failed: rank 1 \(.*call 9 .* in C, stuck")

    def test_invalid_control_lines_do_not_hang_the_job(self):
        for words in ("error 300 boom", "progress -2", "committed -7"):
            with self.subTest(words):
                text = ("import os, socket, sys, time\nif os.environ['RANK'] == '1':\n link = socket.socket(fileno=int(os.environ["
                        f"'DTRUN_CONTROL_FD']))\n link.sendall(b'{words}\\n')\n sys.exit(3)\ntime.sleep(20)")
                self.ended(3, "--emulate-nodes", "2", "-n", "1", *self.stub(text))

    def test_a_suspend_signal_that_reaches_a_rank_first_is_not_a_failure(self):
        """A batch system sends SIGTSTP to each process of a step."""
        text = ("import os, time\nopen(f'pid{os.environ[\"RANK\"]}', 'w').write(str(os.getpid()))\n"
                "while not os.path.exists('go'):\n time.sleep(0.01)")
        process = self.start("-n", "2", *self.stub(text))
        rank = wait_until(lambda: (file := self.folder / "pid0").exists() and file.read_text(), "rank 0")
        os.kill(int(rank), signal.SIGTSTP)
        time.sleep(0.05)
        os.kill(process.pid, signal.SIGTSTP)
        time.sleep(0.5)
        os.kill(process.pid, signal.SIGCONT)
        (self.folder / "go").touch()
        _, error = process.communicate(timeout=LIMIT)
        self.assertEqual((process.returncode, error), (0, ""))

    def test_a_request_to_stop_at_another_node_ends_restarts(self):
        text = ("import os, signal, sys, time\nif os.environ['RANK'] == '0':\n"
                " while not os.path.exists('deaf'):\n  time.sleep(0.01)\n sys.exit(7)\n"
                "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nopen('deaf', 'w').close()\ntime.sleep(60)")
        process = self.start("--emulate-nodes", "2", "-n", "1", "--max-restarts", "2", "--restart-backoff", "0.3", *self.stub(text))
        nodes = wait_until(lambda: len(found := children_of(process.pid)) == 2 and found, "two launchers")
        wait_until(lambda: holds(process.stderr.readline(), "status 7"), "the end of rank 0")
        os.kill(nodes[1], signal.SIGTERM)
        _, error = process.communicate(timeout=LIMIT)
        self.assertEqual(process.returncode, 7, error)
        assert_names(error, "not started", "SIGTERM")
        self.assertNotIn("restart 1 of 2", error)

    def test_a_rank_that_ends_slowly_after_sigkill_does_not_prevent_a_restart(self):
        for nodes in (("-n", "2"), ("--emulate-nodes", "2", "-n", "1")):
            with self.subTest(nodes):
                process = self.start(*nodes, "--max-restarts", "1", "--restart-backoff", "0.02", "--abort-grace", "0.1", *self.stub(SLOW))
                self.wait_for_files("pid")
                slow = int((self.folder / "pid").read_text())
                if not trace(slow):
                    process.kill()
                    self.skipTest("needs ptrace")
                (self.folder / "traced").touch()
                wait_until(lambda: state_of(slow) == "Z", "the end of rank 1")
                time.sleep(0.7)
                os.waitpid(slow, 0)
                _, error = process.communicate(timeout=LIMIT)
                self.assertEqual(process.returncode, 0, error)
                assert_names(error, "rank 1", "SIGKILL", "10 s")
                assert_names(error, "rank 1", "signal 9")
                for name in ("pid", "traced"):
                    (self.folder / name).unlink()


if __name__ == "__main__":
    unittest.main()
