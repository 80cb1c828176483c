"""What tests, campaigns and benchmarks share: the programs, the numbers that a run leaves, and the processes of a job."""

import contextlib
import hashlib
import json
import os
import pathlib
import signal

ROOT = pathlib.Path(__file__).resolve().parent.parent
BIN = pathlib.Path(os.environ.get("DTRAIN_BINARY_DIR", ROOT / "build" / "release")) / "bin"
TEXT = ROOT / "tests" / "golden" / "text.bin"
COMPARED = ("step", "loss", "grad_norm", "learning_rate", "tokens", "samples")


def launched(ranks, *words, folder=BIN):
    """The words of a command that runs dtrain, under dtrun where there are several ranks."""
    launcher = [folder / "dtrun", "-n", ranks, "--"] if ranks > 1 else []
    return [str(word) for word in (*launcher, folder / "dtrain", *words)]


def metrics_of(run_dir):
    """The whole lines of metrics.jsonl; none where there is no such file."""
    path = pathlib.Path(run_dir) / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(True) if line.endswith("\n")]


def steps_of(run_dir):
    """The lines of optimizer steps."""
    return [line for line in metrics_of(run_dir) if "event" not in line]


def outcome(run_dir):
    """(compared numbers of every step and the validation loss if any, bytes of the model) of a run that has ended."""
    numbers = [{key: repr(line[key]) for key in COMPARED} for line in steps_of(run_dir)]
    validation = [repr(line["val_loss"]) for line in metrics_of(run_dir) if line.get("event") == "end" and "val_loss" in line][-1:]
    model = (pathlib.Path(run_dir) / "final" / "model.safetensors").read_bytes()
    header = 8 + int.from_bytes(model[:8], "little")  # whose metadata builds may write in other ways
    return numbers + validation, model[header:]


def digest_of(run_dir):
    """A short text that differs if any bit of an outcome does."""
    numbers, model = outcome(run_dir)
    return f"{numbers} {hashlib.sha256(model).hexdigest()}"


def difference(found, expected):
    """Describes the difference between two outcomes, or None; one without bytes says why there are none."""
    if found[1] is None:
        return found[0]
    if found[0] != expected[0]:
        pairs = [pair for pair in zip(found[0], expected[0]) if pair[0] != pair[1]]
        return f"{pairs[0][0]} instead of {pairs[0][1]}" if pairs else "another number of steps"
    return None if found[1] == expected[1] else "another final model"


def state_of(pid):
    """'R', 'S', 'T', 'Z', ...; None when there is no such process."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None


def parent_of(pid):
    """None when there is no such process."""
    try:
        return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def children_of(pid):
    return [child for child in map(int, filter(str.isdigit, os.listdir("/proc"))) if parent_of(child) == pid]


def family(pid):
    """A process and all below it, parents first."""
    yield pid
    for child in children_of(pid):
        yield from family(child)


def variable_of(pid, name):
    """An environment variable of a process; None where it is not set, and of a process that has ended."""
    with contextlib.suppress(OSError):
        for variable in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if variable.startswith(f"{name}=".encode()):
                return variable.partition(b"=")[2].decode()
    return None


def program_of(pid):
    """The name of its program; None of a process that has ended."""
    try:
        return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return None


def marked(mark):
    """Process id -> its program's name, of all processes that inherited the mark, an environment variable."""
    name, _, value = mark.partition("=")
    return {pid: program_of(pid) for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if variable_of(pid, name) == value}


def end_all(mark):
    """Kills all processes that have the mark, and returns them."""
    left = marked(mark)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):  # the others' end may have been its own
            os.kill(pid, signal.SIGKILL)
    return left
