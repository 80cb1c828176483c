"""Gloo's own sockets: the network interface that they bind to, and impostors that connect to them."""

import os
import re
import sys
import unittest

from dtrun_harness import family, variable_of
from messages import assert_names
from rendezvous_test import LISTENING, RendezvousTest, sockets_of, tcp_rows
from train_test import DTRUN, wait_until

# Connects to gloo's ports, given as PORT:NUMBER, before the ranks do, and sends what a rank with that connection number would;
# SPEAKS is what it sends when it is asked for its proof.
STAND_IN = """
import select, socket, struct, sys
strangers = []
for argument in sys.argv[1:]:
    port, number = map(int, argument.split(":"))
    strangers.append(socket.create_connection(("127.0.0.1", port)))
    strangers[-1].sendall(struct.pack("<q", number))
print("ready", flush=True)
while strangers:
    for stranger in select.select(strangers, [], [])[0]:
        try:
            preamble = stranger.recv(48, socket.MSG_WAITALL)
            if len(preamble) < 48:
                raise OSError
            _, operation, slot, _, length, _ = struct.unpack("<6Q", preamble)
            if operation == 3:  # a message is requested: of 32 bytes, a proof
                SPEAKS
        except OSError:
            strangers.remove(stranger)
"""
WRONG_PROOF = """if length == 32:
                    stranger.sendall(struct.pack("<6Q", 80, 1, slot, 0, 32, 0) + bytes(32))"""
GARBAGE = """if length == 32:
                    stranger.sendall(struct.pack("<6Q", 80, 1, 99, 0, 32, 0) + bytes(32))"""
# Answers like a leaving rank that another rank is to blame; then leaves.
BLAME = """if length == 32:
                    stranger.close()
                    raise OSError
                stranger.sendall(struct.pack("<6Qq", 56, 1, slot, 0, 8, 0, BLAMED))"""


class StandIns(RendezvousTest):
    """Impostors at gloo's port, which does not authenticate."""

    def stand_in(self, speaks, ranks=2):
        """Impostors connect to ranks 0 and 1, each posing as the other; gloo accepts one of the two."""
        late = ["strace", "-f", "--seccomp-bpf", "-qq", "-o", "/dev/null", "-e", "trace=connect",
                "-e", "inject=connect:delay_enter=6s"]
        flags = ("--backend", "gloo", "--global-batch", str(2 * ranks))
        job = self.start([DTRUN, "-n", str(ranks), "--", *late, *self.ddp_command(*flags)])

        def ports():
            """Of each rank."""
            rows, found = tcp_rows(), {}
            for pid in family(job.pid):
                for inode in sockets_of(pid):
                    if inode in rows and rows[inode][2] == LISTENING:
                        found[int(variable_of(pid, "RANK"))] = rows[inode][1]
            return found

        scans = []
        wait_until(lambda: scans.append(ports()) or len(scans[-1]) == ranks or job.poll() is not None, "gloo's ports")
        # A rank numbers the members' connections from 1 on in its first group; 0 was of its group of one.
        places = [f"{scans[-1][rank]}:{1 + 1 - rank}" for rank in range(2)]
        stranger = self.start([sys.executable, "-I", "-c", STAND_IN.replace("SPEAKS", speaks), *places])
        lines = [line for line in self.end_of(job, 4).splitlines() if "error:" in line]
        # A rank may notice the other's failure before dtrun ends it, and then reports it.
        own = [line for line in lines if not re.search(r"ranks? [\d, ]+ closed ", line)]
        self.assertEqual(len(own), 1, lines)
        return own[0], stranger

    def test_a_wrong_proof_ends_the_job_with_one_line(self):
        error, _ = self.stand_in(WRONG_PROOF)
        self.assertRegex(error, "rank [01] to rank [01] at 127.0.0.1 ")

    def test_an_impostor_that_blames_another_rank_and_leaves_is_named_itself(self):
        for blamed, ranks in (("10**9", 2), ("2", 3)):
            error, _ = self.stand_in(BLAME.replace("BLAMED", blamed), ranks)
            self.assertRegex(error, "rank [01] to rank [01] at 127.0.0.1 ")

    def test_garbage_ends_the_job_with_one_line(self):
        error, _ = self.stand_in(GARBAGE)
        assert_names(error, "gloo")


class Interfaces(RendezvousTest):
    """The network interface that gloo binds to."""

    def end_of_job(self, *flags, status=0, **variables):
        job = self.start([DTRUN, "-n", "2", "--", *self.ddp_command("--overwrite", *flags)], env={**os.environ, **variables})
        return self.end_of(job, status)

    def test_a_missing_interface_is_rejected_with_those_that_exist(self):
        for flags, variables, source in (
                (("--interface", "eth99,ib99"), {}, "--interface: found eth99,ib99"),
                (("--interface", "eth99"), {"GLOO_SOCKET_IFNAME": "lo"}, "--interface: found eth99"),
                ((), {"GLOO_SOCKET_IFNAME": "eth99"}, "GLOO_SOCKET_IFNAME: found eth99")):
            error = self.end_of_job("--backend", "gloo", *flags, status=2, **variables)
            self.assertRegex(error, rf"(?m)error: {source}, but .*; it has (.*, )?lo(,|$)")

    def test_the_first_existing_interface_is_used_and_the_flag_takes_precedence(self):
        self.end_of_job("--backend", "gloo", "--interface", "eth99,lo", GLOO_SOCKET_IFNAME="eth99")
        self.end_of_job("--backend", "gloo", GLOO_SOCKET_IFNAME="eth99,lo")

    def test_the_loopback_connects_nodes_of_one_machine(self):
        job = self.start([DTRUN, "--emulate-nodes", "2", "-n", "1", "--", *self.ddp_command("--backend", "gloo")],
                         env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"})
        self.end_of(job)

    def test_shared_memory_needs_no_interface(self):
        error = self.end_of_job("--interface", "eth99", GLOO_SOCKET_IFNAME="eth99")
        assert_names(error, "warning", "--interface", "--backend shm")


if __name__ == "__main__":
    unittest.main()
