"""dtrun finds the rank that a hanging job waits for."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
import unittest

from dtrun_harness import LIMIT, DtrunTest, family, program_of, variable_of, wait_until
from dtrun_nodes_harness import COMM, TIMEOUT, USAGE, Judge, NodesTest

# A rank that uses the control protocol (docs/guide/dtrun.md): each argument RANK:WORDS says what that rank does; "*": any other.
#   steps      two steps          busy       heartbeats for 1.5 s, then exits
#   waits      responds that call 17 is open      late   responds that it has not reached it
#   alive      heartbeats for 3 s without a response, then status 7
#   deaf       does not respond    fails      exits with status 5 after an unrequested response
#   needs      exits with status 5 after its last response: it receives from the next rank
#   fades      the same, but exits a second later, with heartbeats and without responses meanwhile
STUB = r'''
import os, socket, sys, time
rank = os.environ["RANK"]
parts = dict(argument.split(":") for argument in sys.argv[1:])
words = parts.get(rank, parts.get("*", "")).split(",")
link = socket.socket(fileno=int(os.environ["DTRUN_CONTROL_FD"]))
WAITS = b"where in forward, block 2, step 3\ncall 17 all_reduce 4096 open 9.0 -1 dp of 4 ranks from 0\nrecords-end\n"
LATE = b"where in data, step 3\ncall 16 all_reduce 4096 ended 9.5 -1 dp of 4 ranks from 0\nrecords-end\n"
if "steps" in words:
    link.sendall(b"progress 1 1000\nprogress 2 2000\n")
if "busy" in words:
    for _ in range(15):
        time.sleep(0.1)
        link.sendall(b"busy\n")
    sys.exit(0)
if "alive" in words:
    for _ in range(15):
        time.sleep(0.2)
        link.sendall(b"busy\n")
    sys.exit(7)
if "fails" in words:
    time.sleep(0.3)
    link.sendall(WAITS)
    sys.exit(5)
if "needs" in words or "fades" in words:
    time.sleep(0.3)
    link.sendall(b"where in forward\ncall 8 recv 4096 open 9.0 %d pp of 3 ranks from 0\nrecords-last\n" % (int(rank) + 1))
    if "fades" in words:
        link.sendall(b"busy\n")
        time.sleep(1)
    sys.exit(5)
if "floods" in words:
    for _ in range(40000):
        sys.stdout.write("y" * 99 + "\n")
    sys.exit(0)
text = b""
while True:
    text += link.recv(4096)
    if b"abort" in text:
        sys.exit(4)
    if b"records\n" in text and "deaf" not in words:
        text = b""
        link.sendall(WAITS if "waits" in words else LATE)
'''


class Stubs(DtrunTest):
    limit = 60

    def run_stubs(self, *parts, ranks=2, options=("--hang-timeout", "0.5"), status=None):
        begin = time.monotonic()
        process = self.dtrun(*options, "-n", str(ranks), "--", sys.executable, "-S", "-c", STUB, *parts, status=status)
        self.seconds = time.monotonic() - begin
        self.assert_nothing_left()
        return process

    def check_verdict(self, process, rank, text):
        self.assertEqual(process.returncode, TIMEOUT, process.err)
        last = process.err.strip().splitlines()[-1]
        self.assertRegex(last, rf"failed: rank {rank} \(pid \d+ on .*\) .*{text}")

    def test_the_rank_that_did_not_join_a_call_is_named_with_the_call_and_its_position(self):
        process = self.run_stubs("*:steps,waits", "1:steps,late", ranks=3, options=("--hang-timeout", "0.5", "--abort-grace", "30"))
        self.check_verdict(process, 1, r"call 17 \(all_reduce of 4096 bytes .*'dp of 4 ranks from 0'\), .*ranks 0, 2 .*9\.0 s; .*in data, step 3; ")
        self.assertLess(self.seconds, 15)

    def test_a_culprit_on_another_node_is_named(self):
        process = self.run_stubs("*:steps,waits", "2:steps,late",
                                 options=("--hang-timeout", "0.7", "--emulate-nodes", "2"))
        self.check_verdict(process, 2, "call 17")
        self.assertIn("node 1)", process.err.splitlines()[-1])

    def test_the_culprit_is_named_although_the_others_timed_out_first(self):
        for rank, ranks, options in ((1, 3, ()), (2, 2, ("--emulate-nodes", "2"))):
            process = self.run_stubs("*:steps,fails", f"{rank}:steps,late", ranks=ranks, options=options)
            self.check_verdict(process, rank, "call 17")

    def test_the_last_response_of_a_rank_counts_although_heartbeats_follow(self):
        for ranks, options in ((3, ()), (1, ("--emulate-nodes", "3"))):
            process = self.run_stubs("0:steps,needs", "1:steps,fades", "2:steps,late", ranks=ranks,
                                     options=("--abort-grace", "30", *options))
            self.check_verdict(process, 2, r"call 8 \(recv of 4096 bytes .*, for which rank 1 waited")

    def test_a_rank_that_does_not_respond_is_named(self):
        process = self.run_stubs("0:steps,waits", "1:steps,deaf")
        self.check_verdict(process, 1, r"rank 0 .*9.0 s in call 17 \(all_reduce")

    def test_a_rank_with_heartbeats_is_not_blamed_for_not_responding(self):
        for options in (("--hang-timeout", "0.5"), ("--hang-timeout", "0.5", "--emulate-nodes", "2")):
            process = self.run_stubs("*:steps,waits", "1:steps,alive", options=options, status=7)
            self.assertRegex(process.err.splitlines()[-1], r"failed: rank 1 .*status 7")

    def test_if_no_rank_waits_the_silent_rank_is_named(self):
        self.check_verdict(self.run_stubs("0:steps,late", ranks=1), 0,
                           r"0\.5 s \(--hang-timeout\); .*in data, step 3")

    def test_busy_ranks_and_ranks_without_reports_have_no_hang_timeout(self):
        for parts, options in ((("*:steps,busy",), ("--hang-timeout", "0.5")),
                               (("*:steps,busy",), ("--hang-timeout", "0.5", "--emulate-nodes", "2"))):
            process = self.run_stubs(*parts, options=options)
            self.assertEqual((process.returncode, process.err), (0, ""))
        process = self.dtrun("--hang-timeout", "0.2", "-n", "2", "--", "sleep", "1")
        self.assertEqual((process.returncode, process.err), (0, ""))

    def test_a_rank_with_unread_output_has_no_hang_timeout(self):
        jobs = [self.start(*options, "--hang-timeout", "0.5", "-n", "1", "--", sys.executable, "-S", "-c", STUB, "*:steps,floods")
                for options in ((), ("--emulate-nodes", "2"))]
        time.sleep(3)
        for job in jobs:
            _, error = job.communicate(timeout=LIMIT)
            self.assertEqual((job.returncode, error), (0, ""))

    def test_bad_limits_are_refused(self):
        for text in ("x", "-1", "0.01", ""):
            process = self.dtrun("--hang-timeout", text, "true")
            self.assertEqual((process.returncode, process.err.count("\n")), (USAGE, 1), process.err)
            self.assertIn("--hang-timeout", process.err)


class Nodes(NodesTest):
    def test_another_node_responds_once(self):
        """A rank that continues after its response: node 0 must not take the old response for a new one."""
        program = ("import os, socket, time\nlink = socket.socket(fileno=int(os.environ['DTRUN_CONTROL_FD']))\n"
                   "link.recv(4096)\nlink.sendall(b'where it was\\nrecords-end\\n')\n"
                   "for _ in range(5):\n    time.sleep(0.02)\n    link.sendall(b'busy\\n')\n")
        with socket.create_server(("127.0.0.1", self.port)) as server:
            other = self.node(1, "-n", "1", sys.executable, "-S", "-c", program)
            with contextlib.closing(Judge(server)) as judge:
                judge.start()
                judge.tell(judge.ASK)
                kinds = judge.kinds_until(judge.NODE_DONE)
            self.assertEqual((1, [COMM]), (kinds.count(judge.RECORDS), self.ends(other)), other.err)


class Training(DtrunTest):
    """Ranks of dtrain, one of which hangs in its main thread."""

    limit = 60

    def train(self, *options, dtrun=("--hang-timeout", "1.5"), ranks=2):
        text = self.folder / "text"
        text.write_text("In the beginning God created the heaven and the earth.\n" * 400)
        return self.start(*dtrun, "-n", str(ranks), "--", os.path.join(os.environ["DTRAIN_BINARY_DIR"], "bin", "dtrain"), "train",
                          "--data", str(text), "--run-dir", str(self.folder / "run"), "--layers", "2", "--width", "32", "--heads", "2",
                          "--neurons", "64", "--seq-len", "32", "--microbatch", "2", "--threads", "1", "--steps", "100000000",
                          *options)

    def rank_of(self, job, rank):
        def find():
            return [pid for pid in family(job.pid) if program_of(pid) == "dtrain" and variable_of(pid, "RANK") == str(rank)]
        return wait_until(find, f"rank {rank}")[0]

    def hold_up(self, job, rank):
        """Delays the next step that a rank's main thread tells dtrun, by minutes, once it trains. Elsewhere it might be in
        what a disk may delay, such as reading the data, which has no limit."""
        metrics = self.folder / "run" / "metrics.jsonl"
        wait_until(lambda: metrics.exists() and metrics.read_text().count('"step"') > 20, "training", self.limit)
        self.holder = subprocess.Popen(["strace", "-qq", "-o", "/dev/null", "-p", str(self.rank_of(job, rank)),
                                   "-e", "trace=sendto", "-e", "inject=sendto:delay_enter=200000000"], stderr=subprocess.DEVNULL)
        self.addCleanup(self.let_go)

    def let_go(self):
        self.holder.kill()
        self.holder.wait()

    def check(self, job, rank, call):
        _, error = job.communicate(timeout=self.limit)
        self.let_go()  # a traced thread ends with its tracer
        self.assert_nothing_left(limit=5)
        self.assertEqual(job.returncode, TIMEOUT, error)
        last = error.strip().splitlines()[-1]
        self.assertRegex(last, rf"failed: rank {rank} \(pid .* call \d+ \({call} of \d+ bytes .*'.*'\), .* rank.* in .* step \d+", error)

    def test_the_rank_that_hangs_is_named(self):
        for options, call in ((("--strategy", "ddp"), "all_reduce"), (("--strategy", "pp", "--backend", "gloo"), r"\w+")):
            with self.subTest(options=options):
                shutil.rmtree(self.folder / "run", ignore_errors=True)
                job = self.train(*options)
                self.hold_up(job, 1)
                self.check(job, 1, call)

    def test_the_rank_that_hangs_is_named_although_the_others_timed_out_first(self):
        for backend in ("shm", "gloo"):
            with self.subTest(backend=backend):
                shutil.rmtree(self.folder / "run", ignore_errors=True)
                job = self.train("--strategy", "ddp", "--comm-timeout", "5", "--backend", backend, dtrun=(), ranks=3)
                self.hold_up(job, 2)
                self.check(job, 2, "all_reduce")


if __name__ == "__main__":
    unittest.main()
