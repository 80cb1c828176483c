"""A real SLURM of two nodes that lives as long as a test: its own processes, network, host names and munge.

The cluster is a process namespace. Its first process reads standard input and ends when the test closes it or dies;
the kernel then ends all others, and the namespaces of network and mounts go with them. The login host has a bridge, to
which the network namespaces of the nodes n1 and n2 are tied. No name service knows n1 and n2.

Needs root, and the packages slurm-wlm, munge and iproute2.
"""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

NETWORK = "10.213.77."
NODES = {"n1": NETWORK + "1", "n2": NETWORK + "2"}
LOGIN = NETWORK + "254"
START_LIMIT = 20  # seconds
NAMESPACES = ("--mount", "--net", "--uts", "--pid")
DAEMONS = ("munged", "slurmctld", "slurmd", "nsenter")

CONFIGURATION = """
ClusterName=dt
SlurmctldHost=login({login})
SlurmUser=root
AuthType=auth/munge
AuthInfo=cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/ctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=1
SlurmdParameters=config_overrides
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait=2
NodeName=n1 NodeAddr={n1} CPUs=4 RealMemory=1000
NodeName=n2 NodeAddr={n2} CPUs=4 RealMemory=1000
PartitionName=p Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP
"""


def find(program):
    return shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


class SlurmCluster:
    """`with SlurmCluster() as cluster`, or start() and stop()."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="dtrain-slurm-"))
        self.folder.chmod(0o755)

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.stop()

    def start(self):
        self.outer = subprocess.Popen(
            [find("unshare"), *NAMESPACES, "--fork", "--kill-child", "--mount-proc", sys.executable, __file__, self.folder],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.outer.stdout.readline() != "ready\n":
            logs = {path.name: path.read_text()[-2000:] for path in self.folder.glob("*.log")}
            self.stop()
            raise AssertionError(f"SLURM did not start: {logs}")
        children = pathlib.Path(f"/proc/{self.outer.pid}/task/{self.outer.pid}/children").read_text()
        self.first = int(children.split()[0])
        return self

    def stop(self):
        self.outer.stdin.close()
        self.outer.wait()
        self.outer.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def words(self, *words, host="login"):
        """A command on the login host, n1 or n2, as the words to start it with."""
        there = () if host == "login" else ("nsenter", f"--net=/run/netns/{host}")
        return [find("nsenter"), f"--target={self.first}", *NAMESPACES, "--root", "--wdns=/", "--", *there, *map(str, words)]

    def environment(self, **more):
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "DTRUN", "MASTER_", "OMP_"))}
        return {**kept, "SLURM_CONF": str(self.folder / "slurm.conf"), **more}

    def processes(self):
        """Command lines of all processes of the cluster but its own daemons."""
        found = []
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                path = pathlib.Path("/proc", entry)
                if os.readlink(path / "ns/pid") == os.readlink(f"/proc/{self.first}/ns/pid"):
                    found.append((path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        return [line for line in found if line and not any(own in line.split()[0] for own in DAEMONS) and __file__ not in line]


def wait_for(condition, what):
    end = time.monotonic() + START_LIMIT
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(0.02)


def call(text):
    subprocess.run(text, shell=True, check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)


def start_munge(folder):
    """At its usual place, which is this mount namespace's own."""
    call("mount -t tmpfs none /run && mkdir -m 755 /run/munge && chown munge /run/munge")
    own = folder / "munge"
    own.mkdir(mode=0o700)
    (own / "key").write_bytes(os.urandom(128))
    (own / "key").chmod(0o600)
    call(f"chown -R munge {own}")
    call(f"setpriv --reuid=munge --regid=munge --clear-groups -- {find('munged')} --force --num-threads=4 --key-file={own}/key "
         f"--log-file={own}/log --pid-file={own}/pid --seed-file={own}/seed")


def make_network():
    call("hostname login && ip link set lo up && ip link add lan type bridge && ip link set lan up && "
         f"ip address add {LOGIN}/24 dev lan")
    for name, address in NODES.items():
        call(f"ip netns add {name} && ip link add to-{name} type veth peer name eth0 netns {name} && "
             f"ip link set to-{name} master lan up && ip -n {name} address add {address}/24 dev eth0 && "
             f"ip -n {name} link set eth0 up && ip -n {name} link set lo up")


def start_slurm(folder):
    (folder / "slurm.conf").write_text(CONFIGURATION.format(folder=folder, login=LOGIN, **NODES))
    for name in ("state", "spool.n1", "spool.n2"):
        (folder / name).mkdir()
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
    call(find("slurmctld") + " -c")
    for name in NODES:
        call(f"nsenter --net=/run/netns/{name} unshare --uts sh -c 'hostname {name} && exec {find('slurmd')}'")
    idle = [f"{name} idle" for name in NODES]
    wait_for(lambda: subprocess.run(["sinfo", "-hN", "-o", "%N %t"], capture_output=True, text=True).stdout.split("\n")[:2] == idle,
             "idle nodes")


def run_cluster(folder):
    """The first process of the namespaces."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    start_munge(folder)
    make_network()
    start_slurm(folder)
    print("ready", flush=True)
    while sys.stdin.read(1):
        pass


if __name__ == "__main__":
    run_cluster(pathlib.Path(sys.argv[1]))
