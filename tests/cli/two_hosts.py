"""Two hosts on one machine: network namespaces that a pair of virtual Ethernet devices joins. For root alone."""

import os
import pathlib
import subprocess
import unittest
import uuid


def why_not():
    """Why there are no two hosts here; None where there are."""
    if os.getuid() != 0:
        return "needs root: to make network namespaces"
    probe = subprocess.run(["unshare", "--net", "--mount", "ip", "link", "add", "probe0", "type", "veth", "peer", "name", "probe1"],
                           capture_output=True, text=True, check=False)
    return f"needs namespaces: of networks, and veth: {probe.stderr.strip()}" if probe.returncode else None


class TwoHosts:
    """Hosts 0 and 1 with the addresses 10.77.0.1, 10.77.0.2 and fd77::1, fd77::2."""

    def __init__(self, case: unittest.TestCase, folder: pathlib.Path):
        self.folder = folder
        self.names = [f"dtrain-{uuid.uuid4().hex[:8]}" for _ in range(2)]
        for name in self.names:
            self.ip("netns", "add", name)
            case.addCleanup(self.ip, "netns", "delete", name)
        devices = [name.replace("dtrain-", "dt") for name in self.names]
        self.ip("link", "add", devices[0], "netns", self.names[0], "type", "veth",
                "peer", "name", devices[1], "netns", self.names[1])
        for host, device in enumerate(devices):
            self.on(host, "link", "set", "lo", "up")
            self.on(host, "link", "set", device, "up")
            self.on(host, "address", "add", f"10.77.0.{host + 1}/24", "dev", device)
            self.on(host, "address", "add", f"fd77::{host + 1}/64", "dev", device, "nodad")

    def ip(self, *words):
        subprocess.run(["ip", *words], check=True, capture_output=True)

    def on(self, host, *words):
        """A command of ip on that host."""
        self.ip("-n", self.names[host], *words)

    def command(self, host, words, names="", identity=None):
        """Runs `words` on that host with `names` as its /etc/hosts, and claims the network namespace `identity`."""
        table = self.folder / f"hosts-{uuid.uuid4().hex}"
        table.write_text("127.0.0.1 localhost\n" + names)
        script = f"mount --bind {table} /etc/hosts && "
        if identity:
            namespaces = self.folder / f"ns-{uuid.uuid4().hex}"
            namespaces.mkdir()
            (namespaces / "net").symlink_to(identity)
            script += f"mount --bind {namespaces} /proc/$$/ns && "
        # ip netns exec would also mount /sys anew, which some machines refuse.
        return ["nsenter", f"--net=/run/netns/{self.names[host]}", "unshare", "--mount",
                "sh", "-c", script + 'exec "$@"', "sh", *map(str, words)]
