"""What tests of dtrun over several nodes share."""

import struct

from dtrain_harness import free_port
from dtrun_harness import LIMIT, DtrunTest, children_of, wait_until

RENDEZVOUS, PORT, USAGE, COMM, TIMEOUT, SPAWN, SAVED = 10, 11, 2, 4, 5, 12, 9
SECRET = "0123456789abcdef0123456789abcdef"
WAIT = "trap 'kill -KILL $!; exit 0' TERM; : > here$RANK; sleep 30 & wait $!"

# Listens at a port of the loopback as somebody may who shares it, until its input ends; says "listens", or why not.
LISTEN = """
import socket, sys
with socket.socket() as listener:
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        listener.setsockopt(socket.SOL_SOCKET, option, 1)
    try:
        listener.bind(("127.0.0.1", int(sys.argv[1])))
        listener.listen()
        print("listens", flush=True)
    except OSError as error:
        print(error.strerror, flush=True)
    sys.stdin.read()
"""


def text_field(text):
    return struct.pack("<Q", len(text)) + text


class Judge:
    """A node 0 that says what a test wants, to one other node; each has one rank. See launcher/nodes/messages.h."""

    START, NODE_DONE, RECORDS, ASK = 5, 18, 27, 28

    def __init__(self, server):
        server.settimeout(LIMIT)
        self.link = server.accept()[0]
        self.link.settimeout(LIMIT)
        same_user, welcome = 2, 1
        self.link.sendall(b"dtrun/4\n" + text_field(struct.pack("<Q", same_user) + text_field(bytes(32)) + text_field(b"")))
        self.heard = self.link.makefile("rb")
        self.next_message()  # its hello
        self.link.sendall(text_field(struct.pack("<QQ", welcome, 0) + text_field(b"") + text_field(b"")))

    def close(self):
        self.heard.close()
        self.link.close()

    def next_message(self):
        (length,) = struct.unpack("<Q", self.heard.read(8))
        return self.heard.read(length)

    def tell(self, kind, body=b""):
        self.link.sendall(text_field(struct.pack("<QQ", kind, 0) + body))

    def start(self):
        nodes = b"".join(text_field(host) + struct.pack("<Q", 1) for host in (b"hosta", b"hostb"))
        self.tell(self.START, text_field(b"127.0.0.1") + struct.pack("<Q", 29999) + text_field(b"run") + text_field(b"token")
                  + struct.pack("<dddQQ", 2, 60, 10, 0, 2) + nodes)

    def kinds_until(self, last):
        """Of what it is told, up to a message of kind `last`."""
        kinds = []
        while last not in kinds:
            kinds.append(struct.unpack("<Q", self.next_message()[:8])[0])
        return kinds


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
            each.out, each.err = each.communicate(timeout=self.limit)
        self.assert_nothing_left()
        return [each.returncode for each in launchers]

    def emulated(self, text, *options, ranks=2, status=None):
        return self.dtrun("--emulate-nodes", "2", *self.shell(text, *options, ranks=ranks), status=status)
