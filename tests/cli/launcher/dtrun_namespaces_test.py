"""dtrun and dtrain between two network namespaces, which stand for two machines."""

import contextlib
import json
import pathlib
import shutil
import subprocess
import sys
import time

from dtrain_harness import CONSTANT_RATE
from dtrun_harness import DTRUN, DtrunTest, main, wait_until
from messages import assert_names
from two_hosts import TwoHosts, why_not

SECRET = "0123456789abcdef0123456789abcdef"
DTRAIN = str(pathlib.Path(DTRUN).with_name("dtrain"))
TRAINING = [*CONSTANT_RATE, "--strategy", "ddp", "--layers", "2", "--width", "16", "--heads", "2", "--neurons", "16", "--seq-len", "16",
            "--global-batch", "8", "--threads", "1"]
SAVING = "trap 'kill -KILL $!; exit 0' TERM; : > here$RANK; sleep 30 & wait $!"


class Namespaces(DtrunTest):
    ADDRESSES = ("10.77.0.1", "10.77.0.2")
    SIXES = ("fd77::1", "fd77::2")

    def setUp(self):
        super().setUp()
        self.hosts = TwoHosts(self, self.folder)
        self.names = self.hosts.names

    def job(self, *program, secret=SECRET, **options):
        environment = {"DTRAIN_JOB_TOKEN": secret} if secret else {}
        return [self.node(node, *program, environment=environment, **options) for node in range(2)]

    def node(self, node, *program, nodes=2, ranks=2, address=None, options=(), environment):
        return subprocess.Popen(["ip", "netns", "exec", self.names[min(node, 1)], DTRUN, "--nnodes", str(nodes),
                                 "--node-rank", str(node), "--master-addr", address or self.ADDRESSES[0],
                                 "--master-port", "29600", "-n", str(ranks), *options, "--", *program],
                                env=self.environment(**environment), cwd=self.folder, text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def cut(self, how="add"):
        """With "del": repairs the network."""
        for host, other in enumerate(reversed(self.ADDRESSES)):
            self.hosts.on(host, "route", how, "blackhole", other + "/32")

    def connections(self, name, *states):
        """The rows of /proc/net/tcp with these states."""
        rows = subprocess.run(["ip", "netns", "exec", name, "cat", "/proc/net/tcp"], capture_output=True, text=True, check=True)
        return [line for line in rows.stdout.splitlines()[1:] if line.split()[3] in states]

    def ends(self, launchers, limit=20):
        for each in launchers:
            each.out, each.err = each.communicate(timeout=limit)
        self.assert_nothing_left(1)
        return [each.returncode for each in launchers]

    def test_ranks_get_an_address_that_both_hosts_reach(self):
        for address in (self.ADDRESSES[0], self.SIXES[0]):
            launchers = self.job("sh", "-c", "echo $MASTER_ADDR $RANK $WORLD_SIZE", address=address)
            self.assertEqual(self.ends(launchers), [0, 0], launchers[0].err + launchers[1].err)
            lines = sorted(line.split("] ")[1] for each in launchers for line in each.out.splitlines())
            self.assertEqual(lines, [f"{address} {rank} 4" for rank in range(4)])

    def test_a_name_that_node_0_takes_for_a_loopback_address(self):
        """Debian maps a machine's own name to 127.0.1.1."""
        folders = [pathlib.Path("/etc/netns", name) for name in self.names]  # what a process in the namespace sees as /etc
        for folder in folders:
            folder.mkdir(parents=True)
            self.addCleanup(self.remove, folder)
        for known in (self.ADDRESSES[0], self.SIXES[0]):
            with self.subTest(known):
                for folder, address in zip(folders, ("127.0.1.1", known)):
                    (folder / "hosts").write_text(f"127.0.0.1 localhost\n{address} thehost\n")
                options = ("--rdzv-timeout", "5")
                launchers = self.job("sh", "-c", "echo $MASTER_ADDR", ranks=1, address="thehost", options=options)
                self.assertEqual(self.ends(launchers), [0, 0], launchers[0].err + launchers[1].err)
                self.assertEqual([each.out.split("] ")[1] for each in launchers], [known + "\n"] * 2)

    @staticmethod
    def remove(folder):
        shutil.rmtree(folder)
        with contextlib.suppress(OSError):  # another test may use it
            folder.parent.rmdir()

    def test_memory_between_hosts_is_predicted(self):
        """Shared memory within a host, gloo between them."""
        text = self.folder / "text.txt"
        text.write_text("In the beginning God created the heaven and the earth.\n" * 200)
        model = ["--layers", "4", "--width", "64", "--heads", "4", "--neurons", "256", "--seq-len", "64", "--global-batch", "8",
                 "--microbatch", "1", "--threads", "1", "--steps", "3", "--checkpoint-every", "1", "--data", str(text)]
        for name, flags in (("fsdp", ["--strategy", "fsdp"]), ("fast", ["--strategy", "ddp", "--reduction", "fast"])):
            launchers = self.job(DTRAIN, *model, *flags, "--run-dir", str(self.folder / name))
            self.assertEqual(self.ends(launchers, limit=60), [0, 0], launchers[0].err + launchers[1].err)
            lines = [json.loads(line) for line in (self.folder / name / "metrics.jsonl").read_text().splitlines()]
            end = next(line for line in lines if line.get("event") == "end")
            self.assertEqual(lines[0]["backend"], "hier")
            ratio = end["predicted_memory_bytes"] / end["memory_bytes"]
            self.assertTrue(0.97 < ratio < 1.06, f"{name}: {ratio}")  # the sharded tensors as the largest part

    def test_machines_need_a_secret(self):
        for seconds in ("1", "5"):  # node 0 exits before, and after, its rejection has lasted long enough
            launchers = self.job("true", secret="", options=("--rdzv-timeout", seconds))
            self.assertEqual(self.ends(launchers), [10, 2], launchers[0].err + launchers[1].err)
            self.assertIn("DTRAIN_JOB_TOKEN", launchers[1].err)
            assert_names(launchers[0].err, "secret")

    def test_power_sgd_between_replicas_of_shards_does_not_deadlock(self):
        """Reductions over shards complete in another order on each rank; between replicas each factor waits for the previous one."""
        text = self.folder / "text"
        text.write_bytes(bytes(range(32, 96)) * 400)
        launchers = self.job(DTRAIN, *TRAINING, "--strategy", "fsdp", "--fsdp-sharding", "hybrid", "--shard-size", "2",
                             "--tie-layers", "off", "--layers", "6", "--global-batch", "4", "--compress", "powersgd:1",
                             "--compress-min-elements", "64", "--data", str(text), "--steps", "100", "--comm-timeout", "20",
                             "--run-dir", "run")
        self.assertEqual(self.ends(launchers, 60), [0, 0], launchers[0].err + launchers[1].err)

    def test_a_silent_cut_ends_both_sides(self):
        launchers = self.job("sh", "-c", SAVING, options=("--heartbeat-timeout", "1"))
        self.wait_for_files(*(f"here{rank}" for rank in range(4)))
        time.sleep(1)  # the nodes report to each other that all have started
        started = time.monotonic()
        self.cut()
        self.assertEqual(self.ends(launchers), [5, 5])
        self.assertTrue(0.5 < time.monotonic() - started < 15)
        self.assertIn("failed: node 1 ", launchers[0].err)
        self.assertIn("failed: node 0 ", launchers[1].err)
        for each in launchers:
            assert_names(each.err, "1.0 s", "--heartbeat-timeout")
        all_but_time_wait = [f"{state:02X}" for state in range(1, 13) if state != 6]
        for name in self.names:  # neither a connection nor a port is left
            self.assertEqual(self.connections(name, *all_but_time_wait), [])

    def test_a_machine_that_vanishes_during_the_rendezvous_may_rejoin(self):
        established = "01"
        options = {"nodes": 3, "ranks": 1, "options": ("--heartbeat-timeout", "1"), "environment": {"DTRAIN_JOB_TOKEN": SECRET}}
        launchers = [self.node(node, "true", **options) for node in range(2)]
        wait_until(lambda: "waiting for node 2," in launchers[0].stderr.readline(), "node 1's coming")
        self.cut()
        for name in self.names:
            wait_until(lambda name=name: not self.connections(name, established), "the end of the connection")
        launchers[1].kill()
        launchers[1].communicate()
        self.cut("del")
        launchers[1:] = [self.node(node, "true", **options) for node in (1, 2)]
        self.assertEqual(self.ends(launchers), [0, 0, 0], launchers[0].err)


if __name__ == "__main__":
    if why_not():
        print("skipped:", why_not())
        sys.exit(77)
    main()
