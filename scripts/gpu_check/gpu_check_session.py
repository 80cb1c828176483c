"""What the checks of scripts/gpu_check.sh share: a clock, the way to run programs, and runs of dtrain to compare."""

import array
import dataclasses
import json
import math
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

from runs import ROOT, TEXT, metrics_of

LIMIT = 150  # seconds after which a program hangs


class Failed(Exception):
    """A check found a defect."""


class Skipped(Exception):
    """A check cannot be made here."""


class OutOfTime(Skipped):
    """No time is left for a check."""

    def __init__(self):
        super().__init__("NO TIME IS LEFT")


@dataclasses.dataclass(eq=False)
class Session:
    """The programs of one build, the device to check, and the time that is left."""

    build: pathlib.Path  # holds bin/
    program: pathlib.Path  # dtrain
    device: str  # "cuda", or "fake" for a rehearsal
    num_devices: int
    folder: pathlib.Path  # for all that runs leave
    log: pathlib.Path  # of programs that ended otherwise than they should
    ends: float  # time.monotonic()
    quick: bool = False  # a rehearsal: smaller work
    python: str = None  # with the torch to compare with; None: nothing is compared
    torch: object = None  # gpu_check_build.Torch of it
    figures: dict = dataclasses.field(default_factory=dict)  # of the bench, by width and program
    is_ended: bool = False
    started: list = dataclasses.field(default_factory=list)  # processes, each of a group of its own
    lock: threading.RLock = dataclasses.field(default_factory=threading.RLock)  # a signal may end what starts

    def seconds_left(self):
        return self.ends - time.monotonic()

    def new_folder(self):
        return pathlib.Path(tempfile.mkdtemp(dir=self.folder))

    def start(self, command, environment=None):
        with self.lock:
            if self.is_ended:
                raise OutOfTime()
            process = subprocess.Popen([str(word) for word in command], cwd=ROOT, env={**os.environ, **(environment or {})},
                                       stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                       errors="replace", start_new_session=True)
            self.started.append(process)
            return process

    def end(self):
        """Kills what runs, and starts nothing more."""
        with self.lock:
            self.is_ended = True
            for process in self.started:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)

    def run(self, command, status=0, environment=None, limit=LIMIT):
        """The finished process, which ended with `status` (one of a tuple; any, if None)."""
        seconds = min(limit, self.seconds_left())
        if seconds <= 0:
            raise OutOfTime()
        process = self.start(command, environment)
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            self.note(command, *process.communicate())
            error = OutOfTime() if seconds < limit else Failed(f"no end within {limit} s")
            raise error from None
        allowed = status if isinstance(status, tuple) or status is None else (status,)
        if allowed is not None and process.returncode not in allowed:
            self.note(command, out, err)
            last = (err.strip() or out.strip()).splitlines()[-4:]
            raise Failed(f"status {process.returncode} instead of {status}: {' | '.join(last)}")
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def note(self, command, out, err):
        with self.log.open("a") as log:
            log.write(f"$ {' '.join(map(str, command))}\n{out}{err}\n")

    def command(self, *flags, ranks=1, run_dir=None):
        """The words of a training run of the small model; later flags win."""
        launcher = [self.build / "bin" / "dtrun", "-n", ranks, "--"] if ranks > 1 else []
        where = ["--run-dir", run_dir] if run_dir else []
        return [*launcher, self.program, *small_model(self.quick), *where, *flags]

    def on_device(self, ranks=1):
        """Flags that put ranks, which are processes, on the device; there may be only one."""
        shared = ["--share-devices", "on"] if ranks > self.num_devices else []
        return ["--device", self.device, *shared]

    def train(self, *flags, ranks=1, run_dir=None, **options):
        """A training run of the small model and what it left."""
        run_dir = run_dir or self.new_folder() / "run"
        self.run(self.command(*flags, ranks=ranks, run_dir=run_dir), **options)
        return Outcome(run_dir)


def small_model(quick):
    """Settings of what all checks but the bench train: float64, so that nothing hides behind rounding."""
    sizes = {"--layers": 2, "--width": 32, "--heads": 2, "--neurons": 64, "--seq-len": 32, "--steps": 6} if quick else {
        "--layers": 3, "--width": 64, "--heads": 4, "--neurons": 256, "--seq-len": 128, "--steps": 6}
    values = {**sizes, "--dtype": "float64", "--dropout": 0.1, "--global-batch": 8, "--microbatch": 2, "--threads": 1,
              "--val-fraction": 0.1, "--eval-sequences": 8, "--log-every": 0, "--comm-timeout": 60,
              "--reduction": "ordered", "--data": TEXT}
    return ["train", *(str(word) for pair in values.items() for word in pair)]


class Outcome:
    """What a run left in its folder."""

    def __init__(self, run_dir):
        self.run_dir = run_dir
        lines = metrics_of(run_dir)
        self.start = next((line for line in lines if line.get("event") == "start"), {})
        self.steps = [line for line in lines if "event" not in line]
        self.val_losses = [line["val_loss"] for line in lines if "val_loss" in line]

    def numbers(self):
        """Loss and gradient norm of every step, then the last validation loss."""
        return [line[key] for line in self.steps for key in ("loss", "grad_norm")] + self.val_losses[-1:]

    def weights(self):
        return read_floats(self.run_dir / "final" / "model.safetensors")

    def bits(self):
        return [value.hex() for value in self.numbers()], (self.run_dir / "final" / "model.safetensors").read_bytes()


def read_floats(path):
    """Name -> values of each tensor of float32 or float64 in a safetensors file."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, entry in json.loads(data[8:8 + length]).items():
        code = {"F32": "f", "F64": "d"}.get(entry.get("dtype"))
        if code:
            begin, end = entry["data_offsets"]
            tensors[name] = array.array(code, data[8 + length + begin:8 + length + end])
    return tensors


def distance(found, expected):
    """The largest difference over the largest value; infinite where they cannot be compared."""
    if len(found) != len(expected) or not all(map(math.isfinite, found)):
        return math.inf
    largest = max(map(abs, expected), default=0) or 1
    return max((abs(a - b) for a, b in zip(found, expected)), default=0) / largest


def worst_difference(found, expected):
    """(what differs most, by how much) between two outcomes: losses and norms one by one, and each tensor."""
    numbers = [distance([a], [b]) for a, b in zip(found.numbers(), expected.numbers())]
    if len(found.numbers()) != len(expected.numbers()):
        return "the number of steps", math.inf
    differences = {"losses and norms": max(numbers, default=math.inf)}
    own, other = found.weights(), expected.weights()
    for name in own.keys() | other.keys():
        differences[name] = distance(own.get(name, ()), other.get(name, ()))
    return max(differences.items(), key=lambda item: item[1])


def require_close(found, expected, tolerance, what):
    name, value = worst_difference(found, expected)
    if not value <= tolerance:
        raise Failed(f"{what}: {name} differs by {value:.2g}, beyond {tolerance:.0e}")
    return value


def require_equal(found, expected, what):
    if found.bits() != expected.bits():
        name, value = worst_difference(found, expected)
        raise Failed(f"{what}: {name} differs by {value:.2g}, but every bit must be equal")


def error_line(result):
    """The only line of dtrain's that says what is wrong."""
    lines = [line for line in result.stderr.splitlines() if re.match(r"(\[\d+\]: ?)?dtrain: error: ", line)]
    if len(lines) != 1:
        raise Failed(f"{len(lines)} lines name an error: {' | '.join(lines) or result.stderr[-300:]}")
    return lines[0]


def show(text):
    print(text, file=sys.stderr, flush=True)
