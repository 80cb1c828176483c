"""Ranks on two hosts, which are network namespaces: where rank 0 listens, which ranks share a host, and how they connect."""

import os
import pathlib
import subprocess
import unittest

from dtrain_harness import free_port
from messages import assert_names, error_line
from rendezvous_test import LISTENING, SECRET, RendezvousTest
from train_test import wait_until
from two_hosts import TwoHosts, why_not

WHY_NOT = why_not()


@unittest.skipIf(WHY_NOT, WHY_NOT)
class Hosts(RendezvousTest):
    def setUp(self):
        super().setUp()
        self.hosts = TwoHosts(self, self.root)
        self.port = free_port()

    def start_on(self, host, rank, address, *flags, size=2, names="", identity=None, steps=4, before=()):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": address,
                       "MASTER_PORT": str(self.port), "DTRAIN_JOB_TOKEN": SECRET}
        command = [*before, *self.ddp_command("--comm-timeout", "20", *flags, steps=steps)]
        return self.start(self.hosts.command(host, command, names, identity), env=environment)

    def listening(self, host):
        """(Address, port) of all listening sockets of the host."""
        words = ["nsenter", f"--net=/run/netns/{self.hosts.names[host]}", "cat", "/proc/net/tcp", "/proc/net/tcp6"]
        table = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        rows = [line.split() for line in table.splitlines()]
        ends = [row[1].split(":") for row in rows if row[3] == LISTENING]
        return {(address, int(port, 16)) for address, port in ends}

    def shared_bytes(self, rank):
        """The size of the memory that a rank shares, as it maps it."""
        lines = pathlib.Path(f"/proc/{rank.pid}/maps").read_text().splitlines()
        begin, end = next(line.split()[0] for line in lines if "/memfd:dtrain " in line).split("-")
        return int(end, 16) - int(begin, 16)

    def start_line(self):
        return self.metrics()[0]

    def test_a_name_that_resolves_to_the_loopback_on_its_own_host_works_as_master_addr(self):
        # As on Debian; on the other host the name resolves first to an address that does not answer.
        here, there = "127.0.1.1 head\n", "10.77.0.3 head\n10.77.0.1 head\n"
        self.hosts.on(1, "route", "add", "10.77.0.3/32", "via", "10.77.0.1")
        self.hosts.on(0, "route", "add", "blackhole", "10.77.0.3/32")

        pages, page = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        limited = ["prlimit", f"--as={pages * page * 5 // 2}"]

        def rank_on(host, rank, names):
            return self.start_on(host, rank, "head", "--global-batch", "3", "--log-every", "1", size=3, names=names,
                                 steps=1_000_000, before=limited)

        ranks = [rank_on(0, 0, here)]
        wait_until(lambda: self.listening(0) or ranks[0].poll() is not None, "rank 0's store")
        store = {address for address, port in self.listening(0) if port == self.port}
        self.assertIn("01004D0A", store)  # 10.77.0.1
        self.assertNotIn("00000000", store)
        ranks += [rank_on(0, 1, here), rank_on(1, 2, there)]
        wait_until(lambda: self.has_trained() or any(rank.poll() is not None for rank in ranks), "a step")
        # Half of the address space is for the memory of a host's ranks, not of all ranks.
        shared = [self.shared_bytes(rank) for rank in ranks]
        gloo = [{address for address, _ in self.listening(host)} for host in range(2)]
        for rank in ranks:
            rank.terminate()
        for rank in ranks:
            self.end_of(rank, 9)
        self.assertEqual(shared, [pages * 5 // 8 * page, pages * 5 // 8 * page, pages * page])
        self.assertEqual(gloo, [{"01004D0A"}, {"02004D0A"}])

    def listens_at(self, *flags, before=()):
        """Where two ranks of host 0 listen that connect at 10.77.0.1 and have a second interface, ib0, with 10.79.0.1."""
        self.hosts.on(0, "link", "add", "ib0", "type", "veth", "peer", "name", "ib1")
        for device in ("ib0", "ib1"):
            self.hosts.on(0, "link", "set", device, "up")
        self.hosts.on(0, "address", "add", "10.79.0.1/24", "dev", "ib0")
        ranks = [self.start_on(0, rank, "10.77.0.1", "--backend", "gloo", "--log-every", "1", *flags, steps=1_000_000,
                               before=before) for rank in range(2)]
        wait_until(lambda: self.has_trained() or any(rank.poll() is not None for rank in ranks), "a step")
        found = {address for address, _ in self.listening(0)}
        for rank in ranks:
            rank.terminate()
        for rank in ranks:
            self.end_of(rank, 9)
        return found

    def test_gloo_listens_at_the_rendezvous_address_unless_an_interface_is_named(self):
        self.assertEqual(self.listens_at(), {"01004D0A"})

    def test_gloo_listens_at_the_interface_that_the_flag_names(self):
        self.assertEqual(self.listens_at("--interface", "eth99,ib0"), {"01004F0A"})

    def test_gloo_listens_at_the_interface_that_gloos_variable_names(self):
        self.assertEqual(self.listens_at(before=("env", "GLOO_SOCKET_IFNAME=ib0")), {"01004F0A"})

    def test_the_loopback_is_refused_as_the_interface_between_hosts(self):
        for flags, before, source in ((("--interface", "lo"), (), "--interface"),
                                      ((), ("env", "GLOO_SOCKET_IFNAME=lo"), "GLOO_SOCKET_IFNAME")):
            ranks = [self.start_on(rank, rank, "10.77.0.1", *flags, before=before) for rank in range(2)]
            for rank in ranks:
                assert_names(error_line(self.end_of(rank, 2)), source, "lo")

    def test_gloo_refuses_link_local_addresses(self):
        devices = [name.replace("dtrain-", "dt") for name in self.hosts.names]
        for host, device in enumerate(devices):
            self.hosts.on(host, "address", "add", f"fe80::77:{host + 1}/64", "dev", device, "nodad")
        ranks = [self.start_on(rank, rank, f"fe80::77:1%{devices[rank]}") for rank in range(2)]
        for rank in ranks:
            self.assertIn("fe80::", error_line(self.end_of(rank, 2)))

    def test_ranks_rendezvous_at_an_ipv6_address(self):
        ranks = [self.start_on(rank, rank, "fd77::1") for rank in range(2)]
        for rank in ranks:
            self.end_of(rank)

    def test_hosts_with_one_boot_id_are_distinguished(self):
        # Both have the same boot id, as virtual machines cloned from one snapshot do.
        ranks = [self.start_on(rank, rank, "10.77.0.1", identity="net:[1]") for rank in range(2)]
        for rank in ranks:
            self.end_of(rank)
        self.assertEqual(self.start_line()["backend"], "gloo")
        ranks = [self.start_on(rank, rank, "10.77.0.1", "--backend", "shm", "--overwrite", identity="net:[1]")
                 for rank in range(2)]
        for rank in ranks:
            assert_names(error_line(self.end_of(rank, 2)), "--backend shm", "ranks 0 and 1")


if __name__ == "__main__":
    unittest.main()
