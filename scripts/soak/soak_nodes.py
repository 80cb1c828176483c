"""Disturbs training jobs of two nodes with two ranks each: ranks and launchers are killed and stopped, a rank exits with 7,
the disk is full, the network between the nodes is cut in silence; now and then one follows another at once. Each job is
started again by dtrun, or where its launchers have ended, by this program; it must end with the bits of a run that nothing
disturbed, and leave nothing. See scripts/soak.sh. Needs root for the network and the disk: status 77 otherwise."""

import argparse
import collections
import contextlib
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import types
import uuid

from runs import BIN, ROOT, difference, marked, outcome, parent_of

sys.path.insert(0, str(ROOT / "tests" / "cli"))
import two_hosts  # noqa: E402

HEARTBEAT = 5  # seconds without a word until a node counts as lost
MEETING = 10  # seconds that the nodes have to meet
BOUND = 3 + HEARTBEAT + 60  # seconds from a fault to the end: detection, dtrun's own bound, a busy machine's disk
BOUND_OF_TWO = BOUND + MEETING  # a node that is lost between two attempts has that long to begin
ENDLESS = 10_000_000  # steps; the last start of a run is told when to end
FAULTS_OF_A_RUN = 12
INTERNAL = (70, 128 + signal.SIGABRT)  # statuses that no fault explains
LEAVE = signal.SIGRTMIN + 5
# A program that this is loaded into exits with 7 on that signal.
SHIM = """
#include <signal.h>
#include <unistd.h>
static void leave(int number) { _exit(7); }
__attribute__((constructor)) static void listen(void) { signal(SIGRTMIN + 5, leave); }
"""
STRATEGIES = (("ddp",), ("zero", "--zero-stage", 2), ("fsdp", "--fsdp-sharding", "full"))  # of the same bits
MODEL = ("--layers", 2, "--width", 16, "--heads", 2, "--neurons", 16, "--seq-len", 16, "--microbatch", 2, "--threads", 1,
         "--schedule", "constant", "--warmup-steps", 0, "--log-every", 0, "--val-fraction", 0.1, "--eval-sequences", 4,
         "--data", ROOT / "tests/golden/text.bin")
OF_RANKS = ("rank killed", "rank stopped", "rank exits with 7")  # dtrun starts the job again
OF_LAUNCHERS = ("launcher killed", "launcher stopped")  # the job ends
CUT = "network cut"  # it ends, too
DISK = "disk full"  # it goes on
KINDS = (*OF_RANKS, *OF_LAUNCHERS, CUT, DISK)


def wait_for(condition, seconds):
    """Its value once it is true, or None after that time."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            return None
        time.sleep(0.005)
    return value


class Place:
    """Where jobs run: two hosts that share a small disk. Without root: this machine and its disk. Goes with `stack`."""

    def __init__(self, folder, stack):
        self.disk, self.temporary = folder / "disk", folder / "tmp"
        for path in (self.disk, self.temporary):
            path.mkdir()
        self.shim = folder / "shim.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", self.shim, "-x", "c", "-"], input=SHIM, text=True, check=True)
        self.hosts = None if two_hosts.why_not() else two_hosts.TwoHosts(types.SimpleNamespace(addCleanup=stack.callback), folder)
        if self.hosts:
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "dtrain-soak", self.disk], check=True)
            stack.callback(subprocess.run, ["umount", "--lazy", self.disk], check=True)

    def command(self, host, words):
        return self.hosts.command(host, words) if self.hosts else [str(word) for word in words]

    def cut(self, how="replace"):
        """Or, with "delete", mends it. No packet says that the others are dropped."""
        for host in range(2):
            self.hosts.on(host, "route", how, "blackhole", f"10.77.0.{2 - host}/32")

    def sockets(self):
        """TCP sockets of processes on the hosts, and named unix sockets. Those that the kernel still closes, as after a cut,
        belong to inode 0."""
        found = []
        for name in self.hosts.names if self.hosts else ():
            def read(table, name=name):
                words = ["nsenter", f"--net=/run/netns/{name}", "cat", f"/proc/net/{table}"]
                return subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()[1:]
            found += [line for table in ("tcp", "tcp6") for line in read(table) if line.split()[9] != "0"]
            found += [line for line in read("unix") if len(line.split()) > 7]
        return found

    @contextlib.contextmanager
    def full_disk(self):
        filler = self.disk / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        try:
            yield
        finally:
            filler.unlink()


class Run:
    """One run folder and the jobs that train in it, one after the other."""

    def __init__(self, place, name):
        self.place, self.folder = place, place.disk / name
        self.faults, self.slowest, self.pairs = collections.Counter(), collections.defaultdict(float), 0
        self.jobs, self.mark, self.starts, self.over_network, self.ranks_per_node = [], "", 0, False, 2

    def start(self, *flags, steps=ENDLESS, over_network=False):
        """On two hosts, or as two nodes that one of them emulates."""
        self.starts, self.over_network = self.starts + 1, over_network
        self.mark = f"SOAK_MARK={uuid.uuid4().hex}"
        training = [BIN / "dtrain", "--strategy", *(flags or STRATEGIES[0]), *MODEL, "--global-batch", 8, "--steps", steps,
                    "--resume", "auto", "--checkpoint-every", 10, "--comm-timeout", 30, "--run-dir", self.folder]
        options = ["-n", self.ranks_per_node, "--max-restarts", 1000, "--restart-backoff", 0.05, "--heartbeat-timeout", HEARTBEAT,
                   "--rdzv-timeout", MEETING, "--", *training]
        if over_network:
            nodes = [["--nnodes", 2, "--node-rank", node, "--master-addr", "10.77.0.1", *options] for node in range(2)]
        else:
            nodes = [["--emulate-nodes", 2, *options]]
        self.jobs = [self.launch(node, words) for node, words in enumerate(nodes)]

    def launch(self, node, words):
        environment = {**os.environ, "SOAK_MARK": self.mark.partition("=")[2], "TMPDIR": str(self.place.temporary),
                       "LD_PRELOAD": str(self.place.shim), "DTRAIN_JOB_TOKEN": "0123456789abcdef"}
        with self.log(node).open("ab") as log:
            return subprocess.Popen(self.place.command(node, [BIN / "dtrun", *words]), env=environment,
                                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log)

    def log(self, node):
        return self.place.temporary.parent / f"{self.folder.name}.{node}.log"

    def log_end(self):
        return "\n".join(log.read_text(errors="replace")[-3000:] for log in map(self.log, range(2)) if log.exists())

    def restarts(self):
        """By dtrun, in all jobs so far."""
        log = self.log(0)
        return len(re.findall(r"^dtrun: restart \d+ of", log.read_text(errors="replace"), re.MULTILINE)) if log.exists() else 0

    def processes(self, kind):
        names = {"rank": ("dtrain",), "launcher": ("dtrun", "dtrun-ranks"), "supervisor": ("dtrun-ranks",)}[kind]
        found = [pid for pid, name in marked(self.mark).items() if name in names]
        # A rank that has not yet become its program has its supervisor's name.
        return found if kind != "supervisor" else [pid for pid in found if parent_of(pid) not in found]

    def is_over(self):
        return all(job.poll() is not None for job in self.jobs)

    def statuses(self):
        return [job.returncode for job in self.jobs]

    def newest(self):
        found = [path.parent.name[5:] for path in self.folder.glob("checkpoints/step-*/manifest.json")]
        return max((int(step) for step in found if step.isdigit()), default=0)

    def wait_for_moment(self, moment):
        """Whether the moment for a fault came: at once, soon after the ranks' start, while they train, or in a save."""
        newest = self.newest()
        is_there, seconds = {"at once": (lambda: True, 0.3), "start": (lambda: self.processes("rank"), 1.5),
                             "steps": (lambda: self.newest() > newest, 0.3),
                             "save": (lambda: any(self.folder.glob("checkpoints/*.tmp-*")), 0.02)}[moment]
        wait_for(lambda: is_there() or self.is_over(), 60)
        time.sleep(random.uniform(0, seconds))
        return not self.is_over()

    def disturb(self, kind, moment, second=None):
        """Returns what was wrong, or "" for nothing. second: a fault that follows before the first one has had its end."""
        if not self.wait_for_moment(moment):
            return f"the job ended with {self.statuses()} though nobody disturbed it\n{self.log_end()}"
        kinds = [kind] if second is None else [kind, second]
        problem = self.fill_disk() if kind == DISK else self.hit(kinds)
        self.faults.update(kinds)
        self.pairs += second is not None
        return problem and f"{' and '.join(kinds)} ({moment}): {problem}\n{self.log_end()}"

    def hit(self, kinds):
        """A job that loses a node ends, whatever else happens to it."""
        restarts = self.inflict(kinds[0])
        for second in kinds[1:]:
            time.sleep(random.choice((0, 0.02, 0.2, 1)))
            restarts = self.inflict(second)
        begin, bound = time.monotonic(), BOUND if len(kinds) == 1 else BOUND_OF_TWO
        problem = self.wait_for_restart(restarts, bound) if {*kinds} <= {*OF_RANKS} else self.wait_for_end(bound)
        name = kinds[0] if len(kinds) == 1 else "two faults"
        self.slowest[name] = max(self.slowest[name], time.monotonic() - begin)
        if CUT in kinds:
            self.place.cut("delete")
        return problem

    def inflict(self, kind):
        """Returns how often the job had been started again before."""
        if kind == CUT:
            self.place.cut()
            return self.restarts()
        how = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP, "exits": LEAVE}[kind.split()[1]]
        # A stopped guard is like Ctrl-Z, which is the user's right.
        name = "supervisor" if kind == "launcher stopped" else kind.split()[0]
        while True:
            wait_for(lambda: self.processes(name) or self.is_over(), 60)
            victims, restarts = self.processes(name), self.restarts()
            if not victims:  # the fault before has ended them all
                return restarts
            with contextlib.suppress(ProcessLookupError):  # it has just ended, as ranks do when the last fault was theirs
                os.kill(random.choice(victims), how)
                return restarts

    def fill_disk(self):
        """Until a save has failed; then the job must save again."""
        log = self.log(0)
        known = log.stat().st_size
        with self.place.full_disk():
            failed = wait_for(lambda: b"No space left" in log.read_bytes()[known:] or self.is_over(), 30)
        newest = self.newest()
        if not failed:
            return "no save failed though the disk was full"
        return "" if wait_for(lambda: self.newest() > newest or self.is_over(), 60) else "no save after the disk was full"

    def wait_for_restart(self, restarts, bound):
        if not wait_for(lambda: self.restarts() > restarts or self.is_over(), bound):
            return f"neither an end nor a restart within {bound} s"
        return self.judge_end() if self.is_over() else ""

    def wait_for_end(self, bound):
        return self.judge_end() if wait_for(self.is_over, bound) else f"no end within {bound} s"

    def judge_end(self):
        """Of all launchers: a killed one's other half needs a moment."""
        wait_for(lambda: not marked(self.mark), 20)
        left = marked(self.mark) or self.place.sockets()
        if left:
            return f"left over: {left}"
        if any(status == 0 or status in INTERNAL for status in self.statuses()):
            return f"the statuses are {self.statuses()}"
        return ""

    def finish(self):
        """Saves and stops the job, goes on for some steps and compares with a run that nothing disturbed."""
        if not self.is_over() and self.wait_for_moment("steps"):
            for job in self.jobs:
                job.terminate()
            if not wait_for(self.is_over, 30) or set(self.statuses()) != {9}:
                return f"the stop: {self.statuses()}\n{self.log_end()}"
        steps = self.newest() + 20
        self.start(steps=steps, over_network=self.over_network)
        if not wait_for(self.is_over, 120) or set(self.statuses()) != {0}:
            return f"the end: {self.statuses()}\n{self.log_end()}"
        return self.left() or self.difference_from_undisturbed(steps)

    def left(self):
        left = [*marked(self.mark), *self.place.sockets(), *self.place.temporary.iterdir(), *self.folder.rglob("*.tmp*"),
                *(name for name in os.listdir("/dev/shm") if "dtr" in name)]
        return f"left over: {left}" if left else ""

    def difference_from_undisturbed(self, steps):
        whole = self.place.temporary.parent / (self.folder.name + ".whole")
        command = [BIN / "dtrain", "--strategy", "single", *MODEL, "--grad-accum", 4, "--steps", steps, "--run-dir", whole]
        subprocess.run([str(word) for word in command], check=True, capture_output=True)
        found, expected = outcome(self.folder), outcome(whole)
        if self.faults[DISK]:  # lines of metrics that waited for room were lost with a process
            steps_found = {line["step"] for line in found[0] if isinstance(line, dict)}
            expected = [line for line in expected[0] if not isinstance(line, dict) or line["step"] in steps_found], expected[1]
        return difference(found, expected) or ""

    def end_all(self):
        """What a bad end left."""
        for pid in marked(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for job in self.jobs:
            job.wait()


def random_faults(run):
    """As many as a run has, each of a kind that can happen to the job as it is."""
    for _ in range(FAULTS_OF_A_RUN):
        if run.is_over():
            run.start(*random.choice(STRATEGIES), over_network=random.random() < 0.5)
        kinds = [*OF_RANKS * 4, *OF_LAUNCHERS, DISK, *([CUT] * 3 if run.over_network else [])]
        kind = random.choice(kinds)
        seconds = [*OF_RANKS, *OF_LAUNCHERS, *([CUT] if run.over_network else [])]
        second = random.choice(seconds) if kind != DISK and random.random() < 0.25 else None
        # Before the nodes have met, a cut ends nothing.
        early = "start" if CUT in (kind, second) else "at once"
        yield kind, random.choice((early, "start", "steps", "steps", "save")), second


def go_through(run, faults):
    """Disturbs the run until one fault has a bad end; what was wrong, or ""."""
    try:
        problems = (run.disturb(*fault) for fault in faults)
        return next(filter(None, problems), None) or run.finish()
    finally:
        run.end_all()


def count(run, counts):
    counts["restarts by dtrun"] += run.restarts()
    counts["starts by the campaign"] += run.starts
    counts["faults just after another"] += run.pairs
    counts.update(run.faults)
    for kind, seconds in run.slowest.items():
        counts[f"slowest, {kind}"] = max(counts[f"slowest, {kind}"], seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=100, metavar="N")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), metavar="S")
    options = parser.parse_args()
    if two_hosts.why_not():
        print(f"nodes: skipped: {two_hosts.why_not()}")
        return 77
    random.seed(options.seed)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # takes the hosts and the disk down
    print(f"nodes: {options.faults} faults, seed {options.seed}", flush=True)
    begin, runs, bad, counts = time.monotonic(), 0, 0, collections.Counter()
    while sum(counts[kind] for kind in KINDS) < options.faults and bad < 5:
        runs += 1
        with tempfile.TemporaryDirectory(prefix="dtrain-soak-") as folder, contextlib.ExitStack() as stack:
            run = Run(Place(pathlib.Path(folder), stack), "run")
            problem = go_through(run, random_faults(run))
            count(run, counts)
        bad += bool(problem)
        print(f"run {runs}, {time.monotonic() - begin:.0f} s: {problem or 'the bits of an undisturbed run, nothing left'}", flush=True)
    for name, number in sorted(counts.items()):
        print(f"  {name}: {round(number, 1)}{' s' * name.startswith('slowest')}")
    faults = sum(counts[kind] for kind in KINDS)
    print(f"nodes: {faults} faults in {runs} runs, {counts['restarts by dtrun']} restarts, {bad} runs ended badly, "
          f"{time.monotonic() - begin:.0f} s")
    # Launchers that are killed or stopped end the job, disks that are full and ranks that go on end nothing.
    return 1 if bad or counts["restarts by dtrun"] < options.faults / 3 else 0


if __name__ == "__main__":
    sys.exit(main())
