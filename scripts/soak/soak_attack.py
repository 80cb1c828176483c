"""Attacks jobs as another user, everywhere that user can reach, from before they start, and compares their losses with
those of runs that were left alone; see scripts/soak.sh. The jobs have a network of their own, so that nobody else's are
attacked. Needs root, to make it and to act as nobody: status 77 otherwise."""

import argparse
import collections
import contextlib
import fcntl
import json
import os
import pathlib
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback

from runs import BIN, ROOT, metrics_of, parent_of, steps_of

PYTHON = ROOT / ".deps" / "python" / "bin" / "python"  # with torch, where scripts/setup.sh --dev has made it
NOBODY = 65534
SECRET = "0123456789abcdef0123456789abcdef"
SECONDS = 60  # that a job takes when it is left alone; attacked to its end, it takes longer
TORCHRUN_PORT = 29555  # of torchrun's own store, which strangers can disturb
START_STEPS = 3
LIMIT = 900  # seconds that no job takes
SOCKET_KINDS = ("tcp", "flood", "unix")
FILE_KINDS = ("write", "lock", "remove", "signal", "create")


# --- the jobs ----------------------------------------------------------------------------------------------------------

def dtrain(run_dir, backend, steps):
    return [str(word) for word in (
        BIN / "dtrain", "--strategy", "ddp", "--backend", backend, "--config", ROOT / "configs/experiments/mini.json",
        "--global-batch", "2", "--steps", steps, "--seq-len", "32", "--data", ROOT / "tests/golden/text.bin",
        "--threads", "1", "--log-every", "100", "--comm-timeout", "30", "--run-dir", run_dir)]


def start(command, run_dir, **variables):
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                            text=True, env={**os.environ, "TMPDIR": str(run_dir.parent), **variables})


def start_by_dtrun(run_dir, backend, steps):
    return start([str(BIN / "dtrun"), "-n", "2", "--", *dtrain(run_dir, backend, steps)], run_dir)


def end_of(job):
    """Status and standard error; a job that hangs is killed and has no status."""
    try:
        error = job.communicate(timeout=LIMIT)[1]
        return job.returncode, error
    except subprocess.TimeoutExpired:
        job.kill()
        return None, job.communicate()[1]


def losses(run_dir):
    return [line["loss"] for line in steps_of(run_dir)]


def rows(name):
    return [line.split() for line in pathlib.Path("/proc/net", name).read_text().splitlines()[1:]]


def listening_ports():
    """A flood leaves many rows, so most of them are not looked at."""
    lines = [line for line in pathlib.Path("/proc/net/tcp").read_text().splitlines() if " 0A " in line]
    return sorted({int(line.split()[1].rpartition(":")[2], 16) for line in lines})


def free_port():
    """Below those that the system assigns, so that no attacker's own connection takes it. That of dtrain_harness.py marks its
    ports by unix sockets, which would be attacked in place of the jobs'."""
    while True:
        port = random.randrange(10000, 20000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


def by_dtrun(run_dir):
    return [end_of(start_by_dtrun(run_dir, "shm", START_STEPS))]


def by_hand(run_dir, **secret):
    """Two ranks as another launcher starts them; the second one comes when the first one's store has been attacked."""
    port = free_port()
    ranks = []
    for rank in range(2):
        ranks.append(start(dtrain(run_dir, "auto", START_STEPS), run_dir, RANK=str(rank), WORLD_SIZE="2",
                           LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                           **secret))
        while rank == 0 and port not in listening_ports() and ranks[0].poll() is None:
            time.sleep(0.01)
        time.sleep(0.3)
    return [end_of(rank) for rank in ranks]


def by_hand_with_a_secret(run_dir):
    return by_hand(run_dir, DTRAIN_JOB_TOKEN=SECRET)


def by_nodes(run_dir):
    """Two launchers on one machine; another one, with a wrong secret, comes first."""
    port = free_port()

    def launch(node, secret):
        command = [BIN / "dtrun", "--nnodes", 2, "--node-rank", node, "--master-addr", "127.0.0.1", "--master-port", port,
                   "--rdzv-timeout", 60, "-n", 1, "--", *dtrain(run_dir, "auto", START_STEPS)]
        return start([str(word) for word in command], run_dir, DTRAIN_JOB_TOKEN=secret)

    first = launch(0, SECRET)
    while port not in listening_ports() and first.poll() is None:
        time.sleep(0.01)
    status, error = end_of(launch(1, SECRET[::-1]))
    ends = [(0 if status == 2 else status, error)]
    time.sleep(1)  # the attackers find the port
    return ends + [end_of(job) for job in (launch(1, SECRET), first)]


def by_torchrun(run_dir):
    """Two agents on one machine; the attackers find the first rank's store while the second one is late."""
    late = ["sh", "-c", '[ $RANK = 0 ] || sleep 2; exec "$@"', "sh"]
    return [end_of(agent) for agent in [start(
        [str(PYTHON), "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", "1",
         "--master-addr", "127.0.0.1", "--master-port", str(TORCHRUN_PORT), "--no-python",
         *late, *dtrain(run_dir, "auto", START_STEPS)], run_dir) for node in range(2)]]


# --- the attackers -----------------------------------------------------------------------------------------------------

def garbage(source):
    return source.choice((b"", b"\0" * 4096, b"\xff" * 4096, b"\x1b[31mGET / HTTP/1.1\r\n\r\n",
                          bytes(source.randrange(8)) + b"\0" * 7, source.randbytes(source.randrange(1, 5000))))


class Attacker:
    """Counts what came of each attempt, by kind."""

    def __init__(self, folder, seed, colleagues):
        self.folder, self.random, self.colleagues = folder, random.Random(seed), colleagues
        self.counts = collections.defaultdict(collections.Counter)

    def attempt(self, kind, action):
        try:
            action()
            self.counts[kind]["done"] += 1
            return True
        except OSError as error:
            self.counts[kind][error.strerror or type(error).__name__] += 1
            return False


class SocketAttacker(Attacker):
    """Keeps up to 200 connections open and says nonsense on some."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.held = []

    def connect(self, family, kind, address):
        if len(self.held) >= 200:
            self.held.pop(self.random.randrange(len(self.held))).close()
        guest = socket.socket(family, kind)
        self.held.append(guest)
        guest.settimeout(0.2)
        if family == socket.AF_INET:  # from addresses of its own: the job shall not run out of ports
            guest.bind((f"127.0.0.{self.random.randrange(2, 250)}", 0))
            if self.random.random() < 0.5:  # the other half leave rows in the kernel's table for a minute
                guest.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        guest.connect(address)
        return guest

    def tell(self, family, kind, address):
        self.connect(family, kind, address).sendall(garbage(self.random))

    def drip(self):
        """One more byte to somebody, so that no connection is silent for long."""
        if self.held:
            self.random.choice(self.held).sendall(b"\x01")


class TcpAttacker(SocketAttacker):
    """Floods the ports where somebody listens."""

    def one_pass(self):
        self.attempt("drip", self.drip)
        for port in set(listening_ports()) - {TORCHRUN_PORT}:
            address = (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", port))
            for _ in range(20):
                self.attempt("tcp", lambda a=address: self.tell(*a))
            for _ in range(300):
                if not self.attempt("flood", lambda a=address: self.connect(*a)):
                    break  # the port is closed, or its queue is full
        time.sleep(0.001)


class UnixAttacker(SocketAttacker):
    """Comes to all names of unix sockets, which few jobs have for long."""

    def one_pass(self):
        names = {words[7] for words in rows("unix") if len(words) > 7}
        for name in names:
            address = "\0" + name[1:] if name.startswith("@") else name
            for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM):
                self.attempt("unix", lambda a=address, k=kind: self.tell(socket.AF_UNIX, k, a))
        time.sleep(0.001)


class FileAttacker(Attacker):
    """Writes, locks, removes and signals what a job has."""

    def write(self, path):
        with open(path, "r+b", buffering=0) as file:
            file.write(b"attacked")

    def lock(self, path):
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def processes(self):
        """All that the campaign has started but the attackers, who are not nobody yet when they start."""
        children = collections.defaultdict(list)
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{entry}").st_uid != NOBODY:
                    children[parent_of(entry)].append(int(entry))
        found, queue = [], [pid for pid in children[os.getppid()] if pid not in self.colleagues]
        while queue:
            found.append(queue.pop())
            queue += children[found[-1]]
        return found

    def files(self, pids):
        for folder, folders, files in os.walk(self.folder):
            yield from (pathlib.Path(folder, name) for name in folders + files)
        yield from (pathlib.Path("/dev/shm", name) for name in os.listdir("/dev/shm") if "dtr" in name)
        for pid in pids:
            yield pathlib.Path(f"/proc/{pid}/mem")
            yield pathlib.Path(f"/proc/{pid}/environ")
            with contextlib.suppress(OSError):
                yield from (pathlib.Path(f"/proc/{pid}/fd", name) for name in os.listdir(f"/proc/{pid}/fd"))

    def one_pass(self):
        pids = self.processes()
        for path in self.files(pids):
            self.attempt("write", lambda p=path: self.write(p))
            self.attempt("lock", lambda p=path: self.lock(p))
            self.attempt("remove", lambda p=path: os.unlink(p))
        for pid in pids:
            self.attempt("signal", lambda p=pid: os.kill(p, signal.SIGKILL))
        for run_dir in self.folder.iterdir():
            self.attempt("create", lambda d=run_dir: (d / "STOP").write_text("attacked"))
        time.sleep(0.02)


class Attack:
    """All attackers, in processes of their own, as nobody, until end()."""

    def __init__(self, folder, seed):
        self.children = []
        for kind in (TcpAttacker, UnixAttacker, FileAttacker):
            end_reader, end_writer = os.pipe()
            report_reader, report_writer = os.pipe()
            child = os.fork()
            if child == 0:
                for other in (end_writer, report_reader, *(fd for _, end, report in self.children
                                                           for fd in (end, report))):
                    os.close(other)
                self.act(kind(folder, seed, {pid for pid, _, _ in self.children}), end_reader, report_writer)
            os.close(end_reader)
            os.close(report_writer)
            self.children.append((child, end_writer, report_reader))

    def act(self, attacker, end, report):
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            while not select.select([end], [], [], 0)[0]:
                attacker.one_pass()
            os.write(report, json.dumps(attacker.counts).encode())
            os._exit(0)
        except BaseException:  # nothing of this process may run the campaign a second time
            traceback.print_exc()
            os._exit(1)

    def end(self, *needed):
        """Returns whether all attackers ended well and made attempts of each kind; those at ports came through."""
        good, counts = True, {}
        for child, end, report in self.children:
            os.close(end)
            with os.fdopen(report) as pipe:
                text = pipe.read()
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if status != 0:
                print(f"attack: an attacker ended with status {status}")
                good = False
            counts.update(json.loads(text or "{}"))
        for kind in sorted({*counts, *needed}):
            results = counts.get(kind, {})
            words = ", ".join(f"{result} {count}" for result, count in sorted(results.items()))
            is_met = results.get("done", 0) > 0 if kind in ("tcp", "flood") else sum(results.values()) > 0
            missing = kind in needed and not is_met
            print(f"  {kind}: {words or 'none'}{' - NOTHING WAS TRIED' if missing else ''}", flush=True)
            good = good and not missing
        return good


# --- the campaign ------------------------------------------------------------------------------------------------------

def attacked_starts(folder, way, seed, expected, number_of_starts, *needed):
    """Returns whether all starts of a way led to the losses of a run that was left alone."""
    attack = Attack(folder, seed)
    failures = []
    begun = time.monotonic()
    for number in range(number_of_starts):
        run_dir = folder / f"{way.__name__}-{number}"
        ends = way(run_dir)
        if any(status != 0 for status, _ in ends) or losses(run_dir) != expected:
            failures += [(number, status, error) for status, error in ends]
    print(f"attack: {number_of_starts} starts {way.__name__} in {time.monotonic() - begun:.0f} s, "
          f"{len({number for number, _, _ in failures})} FAILED" if failures else
          f"attack: {number_of_starts} starts {way.__name__} in {time.monotonic() - begun:.0f} s, all as if left alone")
    is_complete = attack.end(*needed)
    for number, status, error in failures:
        print(f"  start {number}: status {status}: {error[-600:].strip()}", flush=True)
    return is_complete and not failures


def attacked_job(folder, backend, steps, seed, *needed):
    """Returns whether all was tried, the job's status, what it printed, and its folder. The attack begins before the job
    does, and lasts to its end."""
    run_dir = folder / f"attacked-{backend}"
    attack = Attack(folder, seed)
    status, error = end_of(start_by_dtrun(run_dir, backend, steps))
    print(f"attack: {backend}:")
    return attack.end(*needed), status, error, run_dir


def steps_for(folder, seconds):
    """How many steps take that long here, by a trial."""
    status, error = end_of(start_by_dtrun(folder / "trial", "shm", 200))
    if status != 0:
        raise RuntimeError(error[-2000:])
    lines = metrics_of(folder / "trial")
    times = sorted(line["step_seconds"] for line in lines if "loss" in line)
    return int(seconds / times[len(times) // 2])


def attack_starts(folder, seed, ways, number_of_starts):
    by_dtrun(folder / "start")
    expected = losses(folder / "start")
    good = len(expected) == START_STEPS
    for way in ways:
        needed = ("unix",) if way is by_dtrun else SOCKET_KINDS
        good = attacked_starts(folder, way, seed, expected, number_of_starts, *needed, *FILE_KINDS) and good
    return good


def attack_jobs(folder, seed):
    steps = steps_for(folder, SECONDS)
    print(f"attack: jobs of {SECONDS} s, {steps} steps", flush=True)
    shm_complete, status, error, run_dir = attacked_job(folder, "shm", steps, seed, *FILE_KINDS)
    end_of(start_by_dtrun(folder / "alone", "shm", steps))
    expected = losses(folder / "alone")
    same = status == 0 and len(expected) == steps and losses(run_dir) == expected
    print(f"attack: shm: status {status}, {len(expected)} losses {'equal' if same else 'DIFFER'}", flush=True)
    # gloo's ports trust the network: a stranger can end the job there, with one clear line, and do nothing else.
    gloo_complete, gloo_status, gloo_error, run_dir = attacked_job(folder, "gloo", steps, seed, "tcp", "flood", *FILE_KINDS)
    clear = gloo_status in (4, 5) or (gloo_status == 0 and losses(run_dir) == expected)
    clear = clear and "\x1b" not in gloo_error
    print(f"attack: gloo: status {gloo_status}{'' if clear else ', which is NOT CLEAR'}")
    good = same and clear
    if not good:
        print(error[-2000:], gloo_error[-2000:])
    return good and shm_complete and gloo_complete


def raise_loopback():
    set_flags, up_and_running = 0x8914, 0x41
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, set_flags, struct.pack("16sh22x", b"lo", up_and_running))


WAYS = {way.__name__: way for way in (by_dtrun, by_hand, by_hand_with_a_secret, by_nodes, by_torchrun)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=10, metavar="N", help="starts of each way [10]")
    parser.add_argument("--way", choices=WAYS, action="append", help="only starts of this way, without the long jobs")
    parser.add_argument("--in-own-network", action="store_true", help="for this program's own use")
    options = parser.parse_args()
    if os.getuid() != 0 or subprocess.run(["unshare", "--net", "true"], stderr=subprocess.DEVNULL).returncode != 0:
        print("attack: skipped: only root can switch to user nobody and create a network namespace")
        return 77
    if not options.in_own_network:
        os.execvp("unshare", ["unshare", "--net", sys.executable, __file__, "--in-own-network", *sys.argv[1:]])
    raise_loopback()
    seed = random.randrange(2**32)
    print(f"attack: seed {seed}", flush=True)
    ways = [WAYS[name] for name in options.way or WAYS]
    if by_torchrun in ways and not PYTHON.exists():
        print(f"attack: skipped: by_torchrun: there is no {PYTHON}; scripts/setup.sh --dev makes it")
        ways.remove(by_torchrun)
    with tempfile.TemporaryDirectory(prefix="dtrain-soak-") as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)  # the attacker may look in, as into a home folder that is open to read
        starts_are_good = attack_starts(folder, seed, ways, options.starts)
        return 0 if (options.way or attack_jobs(folder, seed)) and starts_are_good else 1


if __name__ == "__main__":
    sys.exit(main())
