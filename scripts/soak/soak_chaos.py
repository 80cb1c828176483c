"""Trains random small models through random faults: each run is ended again and again, in any phase and in any way, goes
on under another layout each time, leaves nothing, and must end with the bits of a run that nothing disturbed. See
scripts/soak.sh."""

import argparse
import collections
import dataclasses
import os
import pathlib
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import uuid

from runs import BIN, difference, end_all, launched, marked, outcome
from soak_parity import random_settings

ENDS_WITHIN = 120  # seconds; a stop may have to save, and a rank that waits for another has --comm-timeout
ENDS_AT_ONCE = 10  # where no save is pending; dtrun's own bound is 3
INTERNAL = (70, 128 + signal.SIGABRT)  # statuses that no fault explains

SHARDED = {"zero 1": ("zero", "--zero-stage", 1), "zero 2": ("zero", "--zero-stage", 2),
           "zero 3": ("zero", "--zero-stage", 3, "--offload", "disk:{disk}"), "ddp": ("ddp",),
           "fsdp": ("fsdp", "--fsdp-sharding", "full", "--shard-size", 0),
           "fsdp grad-op": ("fsdp", "--fsdp-sharding", "grad-op", "--shard-size", 0),
           "fsdp hybrid": ("fsdp", "--fsdp-sharding", "hybrid", "--shard-size", 2)}
# Layouts of one class have the same bits, so a run may change between them. The first one computes what is expected.
CLASSES = {"data": ["single", "dp", *SHARDED], "tensor": ["tp"], "pipeline": ["pp"], "mesh": ["3d"]}
# How often each is chosen.
KINDS = ("signal", "signal", "in a save", "in a save", "in a save", "file limit", "damage")
NAMES = ("data", "data", "data", "tensor", "pipeline", "mesh")
SIZES = {"tp": (1, 2), "pp": (2, 1), "3d": (2, 2)}  # stages, ranks that share a block


@dataclasses.dataclass
class Campaign:
    """What is done to each run."""

    kinds: tuple = KINDS  # of faults
    most: int = 20  # faults
    names: tuple = NAMES  # of classes of layouts
    steps: int = 400
    every: tuple = (3, 40)  # steps between saves: the least and the most
    within: float = 0.05  # seconds after a save has begun, in which it is met
    limits: tuple = (0, 0, 0.2)  # MB/s that a rank writes


CAMPAIGNS = {"chaos": Campaign(), "kills": Campaign(kinds=("signal",)),
             # Saves that are slow enough to be met at every stage, or as fast as they go.
             "checkpoints": Campaign(kinds=("in a save",), most=30, names=("data",), steps=4000, every=(2, 2), within=1.5,
                                     limits=(0, 0.5, 3))}


def data_ranks(layout, microbatches):
    """How many data-parallel ranks the layout may have."""
    if layout == "single":
        return [1]
    least = 1 if layout in SIZES else 2
    return [count for count in (1, 2, 4) if least <= count <= microbatches and (layout not in SIZES or count <= 2)]


def flags_of(layout, ranks):
    """Processes, and the flags of the layout on so many data-parallel ranks."""
    if layout == "single":
        return 1, ["--strategy", "single"]
    if layout == "dp":
        return 1, ["--strategy", "dp", "--local-ranks", ranks]
    backend = ["--backend", random.choice(("gloo", "shm"))]
    if layout in SIZES:
        stages, slices = SIZES[layout]
        axis = random.choice((["ddp"], ["zero", "--zero-stage", 2], ["fsdp"]))
        return stages * slices * ranks, ["--strategy", "3d", "--pp", stages, "--tp", slices, "--dp", ranks,
                                         "--data-axis", *axis, *backend]
    return ranks, ["--strategy", *SHARDED[layout], *backend]


def settings_of(name, steps):
    """Random settings that every layout of the class takes, microbatches of a step, and the processes' environment."""
    settings, microbatches, environment = random_settings()
    settings |= {"--steps": steps, "--threads": 1, "--eval-every": random.choice((0, 50)), "--schedule": "constant", "--warmup-steps": 0,
                 "--eval-sequences": 8, "--dtype": random.choice(("float32", "float32", "float64", "bfloat16"))}
    if name != "data":
        settings |= {"--layers": random.choice((2, 3)), "--heads": 2, "--neurons": 4 * random.randint(1, 30),
                     "--tie-layers": "on", "--freeze": ""}
    return {key: value for key, value in settings.items() if value != ""}, microbatches, environment


class Run:
    """One run folder and what was done to it."""

    def __init__(self, name, settings, microbatches, environment, folder, campaign):
        self.name, self.settings, self.microbatches, self.folder = name, settings, microbatches, folder
        self.campaign = campaign
        self.environment = {**os.environ, **environment, "TMPDIR": str(folder.parent)}
        self.done = collections.Counter()
        self.kinds = set()  # of the faults, those included that the run was too fast for
        self.layouts = []
        self.newest = 0
        self.damaged = None

    def start(self, layout, ranks, extra=(), file_limit=None):
        """A job, and the mark that all its processes inherit."""
        processes, flags = flags_of(layout, ranks)
        self.layouts.append(f"{layout} x {ranks}")
        command = launched(processes, *flags, *(word for pair in self.settings.items() for word in pair),
                           "--grad-accum", self.microbatches // ranks, "--resume", "auto", "--run-dir", self.folder,
                           "--comm-timeout", 20, "--keep-last", random.choice((2, 3)), *extra)
        if processes == 1 and random.random() < 0.5:
            command = [str(BIN / "dtrun"), "-n", "1", "--", *command]
        mark = f"SOAK_MARK={uuid.uuid4().hex}"

        def limit():
            if file_limit is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, resource.RLIM_INFINITY))

        job = subprocess.Popen([word.format(disk=self.folder.parent) for word in command], preexec_fn=limit,
                               env={**self.environment, "SOAK_MARK": mark.partition("=")[2]}, stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        return job, mark

    def random_layout(self):
        layout = random.choice(CLASSES[self.name])
        return layout, random.choice(data_ranks(layout, self.microbatches))

    def steps(self):
        """Steps of the checkpoints that are committed, oldest first."""
        found = self.folder.glob("checkpoints/step-*/manifest.json")
        return sorted(int(path.parent.name[5:]) for path in found if path.parent.name[5:].isdigit())

    def saves(self):
        """The names of saves that are under way, or were when their job was killed."""
        return {path.name for path in self.folder.glob("checkpoints/*.tmp-*")}

    def disturb(self):
        """One fault; what was wrong with the job's end ("" for nothing), or None if the run was over before it."""
        kind = random.choice(self.campaign.kinds)
        if kind == "damage":
            return self.damage()
        self.kinds.add(kind)
        extra = ["--checkpoint-every", random.randint(*self.campaign.every),
                 "--checkpoint-write-limit", random.choice(self.campaign.limits)]
        files, saves = self.files(), self.saves()
        job, mark = self.start(*self.random_layout(), extra, random.randint(1_000, 400_000) if kind == "file limit" else None)
        self.wait(job, kind, saves)
        saves = self.saves() - saves
        how = hit(job, mark) if job.poll() is None else None
        limit = ENDS_AT_ONCE if how and kind == "signal" and not saves else ENDS_WITHIN
        problem = self.judge(job, mark, f"{kind}, {how}", how, limit, files)
        if how:
            self.done[f"{kind}, {how}"] += 1
        return problem

    def wait(self, job, kind, saves):
        """Until the moment of the fault, at most for some seconds."""
        end = time.monotonic() + (20 if kind == "in a save" else random.uniform(0, 2.5))
        while time.monotonic() < end and job.poll() is None:
            if kind == "in a save" and not self.saves() <= saves:
                time.sleep(random.uniform(0, self.campaign.within))
                return
            time.sleep(0.002)

    def damage(self):
        """Another byte in a file of the newest checkpoint, if there is an older whole one."""
        steps = self.steps()
        if len(steps) < 2 or self.damaged in steps:
            return self.disturb()
        self.damaged = steps[-1]
        self.newest = steps[-2]
        path = random.choice(sorted(self.folder.glob(f"checkpoints/step-{self.damaged}/*")))
        content = bytearray(path.read_bytes())
        content[random.randrange(len(content))] ^= 1 << random.randrange(8)
        path.write_bytes(content)
        self.done["damage"] += 1
        return ""

    def files(self):
        """The names beside the run folder: temporary files, and those of --offload."""
        return {path.name for path in self.folder.parent.iterdir() if path != self.folder}

    def judge(self, job, mark, kind, how, limit, before):
        try:
            error = job.communicate(timeout=limit)[1]
        except subprocess.TimeoutExpired:
            end_all(mark)
            return f"{kind}: no end within {limit} s"
        end = time.monotonic() + 10  # a killed launcher's other half needs a moment
        while marked(mark) and time.monotonic() < end:
            time.sleep(0.005)
        left = end_all(mark)
        files = self.files() - before
        if left or (files and "SIGKILL" not in str(how)):
            return f"{kind}: left over: {left} {files}"
        if job.returncode in INTERNAL or "internal" in error:
            return f"{kind}: status {job.returncode}: {error[-2000:]}"
        if job.returncode != 0:
            return self.check_checkpoints(kind, error)
        is_over = (self.folder / "final" / "model.safetensors").exists()
        return None if is_over else f"{kind}: status 0 before the last step\n{error[-2000:]}"

    def check_checkpoints(self, kind, error):
        """Nothing that was committed may be lost or damaged."""
        steps = [step for step in self.steps() if step != self.damaged]
        if steps and steps[-1] < self.newest:
            return f"{kind}: the newest checkpoint is {steps[-1]}, was {self.newest}\n{error[-2000:]}"
        if self.newest and not steps:
            return f"{kind}: no checkpoint is left, there was {self.newest}\n{error[-2000:]}"
        self.newest = max(steps, default=0)
        if steps and self.damaged not in self.steps():
            result = subprocess.run([BIN / "dtrain", "checkpoint", "verify", self.folder], capture_output=True, text=True, check=False)
            return f"{kind}: {result.stdout}{result.stderr}" if result.returncode else ""
        return ""

    def finish(self, layout, ranks):
        """Lets the run come to its end; what was wrong with it, or ""."""
        job, mark = self.start(layout, ranks)
        error = job.communicate(timeout=10 * ENDS_WITHIN)[1]
        return f"the end: status {job.returncode}: {error[-2000:]}{end_all(mark) or ''}" if job.returncode != 0 else ""

    def difference_from(self, whole):
        """Lines of metrics that wait for room are lost with a process that is killed meanwhile: where a limit on file sizes
        was among the faults, some may be missing."""
        found, expected = outcome(self.folder), outcome(whole.folder)
        if any(kind.startswith("file limit") for kind in self.kinds) and found[1]:
            steps = {line["step"] for line in found[0] if isinstance(line, dict)}
            expected = [line for line in expected[0] if not isinstance(line, dict) or line["step"] in steps], expected[1]
        return difference(found, expected)


def hit(job, mark):
    """Sends a random signal to a random process of the job; its description, or None if it came too late."""
    names = collections.defaultdict(list)
    for pid, name in marked(mark).items():
        names[{"dtrun": "launcher", "dtrun-ranks": "supervisor"}.get(name, "rank")].append(pid)
    kind = random.choice(list(names) or ["launcher"])
    if kind == "rank":
        how = random.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGSTOP))
    elif kind == "supervisor":
        how = signal.SIGKILL  # it hears other signals from the launcher alone
    else:
        how = random.choice((signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
    if how == signal.SIGSTOP and "launcher" not in names:
        how = signal.SIGKILL  # who starts one process alone may stop and continue it
    try:
        os.kill(random.choice(names[kind] or [job.pid]), how)
    except ProcessLookupError:
        return None
    return f"{how.name} to a {kind}"


def one_run(campaign, folder):
    """The run, and what was wrong with it ("" for nothing)."""
    name = random.choice(campaign.names)
    settings = settings_of(name, campaign.steps)
    whole, run = (Run(name, *settings, folder / part, campaign) for part in ("whole", "run"))
    problem = whole.finish(CLASSES[name][0], 1)
    faults = ""
    while not problem and faults == "" and sum(run.done.values()) < campaign.most:
        faults = run.disturb()
    problem = problem or faults or run.finish(*run.random_layout()) or run.difference_from(whole)
    if not problem:
        return run, ""
    flags = " ".join(f"{key} {value}" for key, value in settings[0].items())
    return run, f"{settings[2]}, {settings[1]} microbatches, {flags}\n  {'; '.join(run.layouts)}\n  {problem}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("campaign", nargs="?", choices=sorted(CAMPAIGNS), default="chaos")
    limit = parser.add_mutually_exclusive_group()
    limit.add_argument("--faults", type=int, default=500, metavar="N")
    limit.add_argument("--minutes", type=float, metavar="M", help="as many faults as they allow")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), metavar="S")
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGHUP):  # jobs would inherit that nohup or a shell's & ignores them
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    random.seed(options.seed)
    amount = f"{options.minutes:g} minutes" if options.minutes else f"{options.faults} faults"
    print(f"{options.campaign}: {amount}, seed {options.seed}", flush=True)
    begin, runs, bad, faults, layouts = time.monotonic(), 0, 0, collections.Counter(), collections.Counter()
    while time.monotonic() < begin + 60 * options.minutes if options.minutes else sum(faults.values()) < options.faults:
        with tempfile.TemporaryDirectory(prefix="dtrain-soak-") as folder:
            run, problem = one_run(CAMPAIGNS[options.campaign], pathlib.Path(folder))
        runs, faults = runs + 1, faults + run.done
        layouts.update(layout.rpartition(" x ")[0] for layout in run.layouts)
        print(f"run {runs}, {run.name}: {sum(run.done.values())} faults, {len(run.layouts)} starts", flush=True)
        if problem:
            bad += 1
            print(problem, flush=True)
        if problem and not faults:
            return 1  # nothing runs here
    for kind, count in faults.most_common():
        print(f"  {count:4} {kind}")
    print("  starts: " + ", ".join(f"{layout} {count}" for layout, count in layouts.most_common()))
    print(f"{options.campaign}: {sum(faults.values())} faults in {runs} runs over {len(layouts)} layouts, {bad} runs ended badly, "
          f"{time.monotonic() - begin:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
