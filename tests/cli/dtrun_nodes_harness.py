"""What tests of dtrun over several nodes share."""

import pathlib
import socket
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from dtrun_harness import LIMIT, DtrunTest, children_of, wait_until  # noqa: E402

RENDEZVOUS, PORT, USAGE, COMM, TIMEOUT, SPAWN, SAVED = 10, 11, 2, 4, 5, 12, 9
SECRET = "0123456789abcdef0123456789abcdef"
WAIT = "trap 'kill -KILL $!; exit 0' TERM; : > here$RANK; sleep 30 & wait $!"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def text_field(text):
    return struct.pack("<Q", len(text)) + text


def supervisor_of(launcher):
    return wait_until(lambda: children_of(launcher.pid), "a supervisor")[0]


class NodesTest(DtrunTest):
    def setUp(self):
        super().setUp()
        self.port = free_port()

    def node(self, rank, *arguments, nodes=2, address="127.0.0.1", **options):
        return self.start("--nnodes", str(nodes), "--node-rank", str(rank), "--master-addr", address,
                          "--master-port", str(self.port), *arguments, **options)

    def nodes(self, text, *options, ranks=(1, 1), **more):
        """A job of len(ranks) launchers, whose ranks run a shell text."""
        return [self.node(rank, *self.shell(text, *options, ranks=count), nodes=len(ranks), **more)
                for rank, count in enumerate(ranks)]

    def ends(self, *launchers):
        """Their statuses, once all have ended and nothing is left."""
        for each in launchers:
            each.out, each.err = each.communicate(timeout=LIMIT)
        self.assert_nothing_left()
        return [each.returncode for each in launchers]

    def emulated(self, text, *options, ranks=2):
        return self.dtrun("--emulate-nodes", "2", *self.shell(text, *options, ranks=ranks))
