"""Attacks a running job as another user, everywhere that user can reach, and compares its losses with a run that was left
alone; see scripts/soak.sh. Needs root, to act as nobody: status 77 otherwise."""

import collections
import contextlib
import fcntl
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BIN = ROOT / "build" / "release" / "bin"
NOBODY = 65534
SECONDS = 60
SLACK = 1.5  # how much longer than the attack the job should run


def command(run_dir, backend, steps):
    return [str(word) for word in (
        BIN / "dtrun", "-n", "2", "--", BIN / "dtrain", "--strategy", "ddp", "--backend", backend,
        "--config", ROOT / "configs/experiments/mini.json", "--global-batch", "2", "--steps", steps, "--seq-len", "32",
        "--data", ROOT / "tests/golden/text.bin", "--threads", "1", "--log-every", "100", "--run-dir", run_dir)]


def losses(run_dir):
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def processes_below(pid):
    children = collections.defaultdict(list)
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            stat = pathlib.Path(f"/proc/{entry}/stat").read_text()
            children[int(stat.rpartition(")")[2].split()[1])].append(int(entry))
    found, queue = [], [pid]
    while queue:
        found.append(queue.pop())
        queue += children[found[-1]]
    return found


def rows(name):
    return [line.split() for line in pathlib.Path("/proc/net", name).read_text().splitlines()[1:]]


def sockets_of(pids):
    """Ports and names of all sockets of the job; which ones is looked up by root, as the attacker would by trying."""
    inodes = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for entry in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    inodes.add(os.readlink(f"/proc/{pid}/fd/{entry}")[8:-1])
    ports = {int(words[1].rpartition(":")[2], 16) for words in rows("tcp") if words[9] in inodes}
    names = {words[7] for words in rows("unix") if words[6] in inodes and len(words) > 7}
    return sorted(ports), sorted(names)


def garbage(source):
    return source.choice((b"", b"\0" * 4096, b"\xff" * 4096, b"\x1b[31mGET / HTTP/1.1\r\n\r\n",
                          bytes(source.randrange(8)) + b"\0" * 7, source.randbytes(source.randrange(1, 5000))))


class Attacker:
    """What one pass tries; counts what came of each try."""

    def __init__(self, sockets, pids, folder, seed):
        self.ports, self.names = sockets
        self.pids, self.folder = pids, pathlib.Path(folder)
        self.random = random.Random(seed)
        self.held = []
        self.counts = collections.Counter()

    def attempt(self, what, action):
        try:
            action()
            self.counts[what + ": done"] += 1
        except OSError as error:
            self.counts[f"{what}: {error.strerror or type(error).__name__}"] += 1

    def connect(self, family, kind, address):
        guest = socket.socket(family, kind)
        guest.settimeout(0.2)
        self.held.append(guest)
        if len(self.held) > 200:
            self.held.pop(self.random.randrange(len(self.held))).close()
        guest.connect(address)
        guest.sendall(garbage(self.random))

    def write(self, path):
        with open(path, "r+b", buffering=0) as file:
            file.write(b"attacked")

    def lock(self, path):
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def files(self):
        yield from self.folder.rglob("*")
        for folder in ("/dev/shm", "/tmp"):
            with contextlib.suppress(OSError):
                yield from (path for path in pathlib.Path(folder).iterdir() if "dtr" in path.name)
        for pid in self.pids:
            yield pathlib.Path(f"/proc/{pid}/mem")
            yield pathlib.Path(f"/proc/{pid}/environ")
            with contextlib.suppress(OSError):
                yield from pathlib.Path(f"/proc/{pid}/fd").iterdir()

    def one_pass(self):
        for port in self.ports:
            for _ in range(5):
                self.attempt("tcp", lambda p=port: self.connect(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", p)))
        for name in self.names:
            address = "\0" + name[1:] if name.startswith("@") else name
            for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM):
                self.attempt("unix", lambda a=address, k=kind: self.connect(socket.AF_UNIX, k, a))
        for path in self.files():
            self.attempt("write", lambda p=path: self.write(p))
            self.attempt("lock", lambda p=path: self.lock(p))
            self.attempt("remove", lambda p=path: os.unlink(p))
        for pid in self.pids:
            self.attempt("signal", lambda p=pid: os.kill(p, signal.SIGKILL))
        self.attempt("create", lambda: (self.folder / "STOP").write_text("attacked"))


def attack(sockets, pids, folder, seed):
    """In a process of its own, as nobody, until SECONDS have passed."""
    child = os.fork()
    if child:
        return child
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    attacker = Attacker(sockets, pids, folder, seed)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        attacker.one_pass()
        time.sleep(0.02)
    for what, count in sorted(attacker.counts.items()):
        print(f"  {what}: {count}")
    sys.stdout.flush()
    os._exit(0)


def run(run_dir, backend, steps):
    return subprocess.Popen(command(run_dir, backend, steps), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                            stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(run_dir.parent)})


def steps_for(folder, seconds):
    """How many steps take that long here, by a trial."""
    trial = run(folder / "trial", "shm", 200)
    error = trial.communicate()[1]
    if trial.returncode != 0:
        raise RuntimeError(error[-2000:])
    lines = [json.loads(line) for line in (folder / "trial" / "metrics.jsonl").read_text().splitlines()]
    times = sorted(line["step_seconds"] for line in lines if "loss" in line)
    return int(seconds / times[len(times) // 2])


def attacked_job(folder, backend, steps, seed):
    """Whether it outlived the attack, its status, what it printed, and its folder."""
    run_dir = folder / f"attacked-{backend}"
    job = run(run_dir, backend, steps)
    while not (run_dir / "metrics.jsonl").exists() and job.poll() is None:
        time.sleep(0.01)
    time.sleep(1)
    pids = processes_below(job.pid)
    sockets = sockets_of(pids)
    print(f"attack: {backend}, processes {pids}, TCP ports {sockets[0]}, unix sockets {sockets[1]}", flush=True)
    os.waitpid(attack(sockets, pids, run_dir, seed), 0)
    survived = job.poll() is None
    error = job.communicate()[1]
    return survived, job.returncode, error, run_dir


def main():
    if os.getuid() != 0:
        print("attack: skipped: only root can act as nobody")
        return 77
    seed = random.randrange(2**32)
    with tempfile.TemporaryDirectory(prefix="dtrain-soak-") as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)  # the attacker may look in, as into a home folder that is open to read
        steps = steps_for(folder, SECONDS * SLACK)
        print(f"attack: {SECONDS} s, {steps} steps, seed {seed}", flush=True)
        survived, status, error, run_dir = attacked_job(folder, "shm", steps, seed)
        alone = run(folder / "alone", "shm", steps)
        alone.communicate()
        expected = losses(folder / "alone")
        same = status == 0 and len(expected) == steps and losses(run_dir) == expected
        print(f"attack: shm: status {status}, outlived the attack: {survived}, "
              f"{len(expected)} losses {'equal' if same else 'DIFFER'}", flush=True)
        # Gloo's connections are not authenticated: the job may end, but with one clear line.
        _, gloo_status, gloo_error, run_dir = attacked_job(folder, "gloo", steps, seed)
        clear = gloo_status in (4, 5) or (gloo_status == 0 and losses(run_dir) == expected)
        clear = clear and "\x1b" not in gloo_error
        print(f"attack: gloo: status {gloo_status}{'' if clear else ', which is NOT CLEAR'}")
        if not (same and survived and clear):
            print(error[-2000:], gloo_error[-2000:])
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
