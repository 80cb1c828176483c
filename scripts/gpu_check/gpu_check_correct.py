"""Whether dtrain computes on a device what it computes on the CPU: the checks of scripts/gpu_check.sh but the bench.

A check takes the session and returns a line that says what was found; it raises Failed or Skipped.
"""

import functools
import os
import re
import signal
import time

from gpu_check_session import ROOT, Failed, OutOfTime, Skipped, error_line, require_close, require_equal
from runs import family, variable_of

GOLDEN = ROOT / "tests" / "golden"
USAGE, MEMORY, DEVICE = 2, 8, 13  # exit statuses
KILLED = 128 + signal.SIGKILL
FIRST_STEPS_WITHIN = 60  # seconds
ENDS_WITHIN = 10  # seconds after a rank was killed; dtrun's own bound is 3
# The CPU and a GPU add products in other orders: what that may change of losses, norms and weights.
PARITY = {"float64": 1e-9, "float32": 2e-3, "bfloat16": 5e-2}
# Of float16 beside the CPU's float32, since a CPU takes minutes for float16; the CPU's own is 0.0064 from it, and its
# bfloat16 0.0068, so that the bound is bfloat16's.
FLOAT16 = PARITY["bfloat16"]
OFFLOADS = ("optimizer", "all")
# Two processes on the data axis have the bits of one, where sums have one order.
BITWISE = {"ddp": "--strategy ddp", "fsdp": "--strategy fsdp", "fsdp grad-op": "--strategy fsdp --fsdp-sharding grad-op",
           "hybrid": "--strategy fsdp --fsdp-sharding hybrid --shard-size 1",
           "zero 1": "--strategy zero --zero-stage 1", "zero 2": "--strategy zero --zero-stage 2",
           "zero 3": "--strategy zero --zero-stage 3", "3d": "--strategy 3d --pp 1 --tp 1 --dp 2 --data-axis fsdp"}
CLOSE = {"tp": "--strategy tp", "pp gpipe": "--strategy pp --schedule-pp gpipe", "pp 1f1b": "--strategy pp --schedule-pp 1f1b",
         "ddp fast": "--strategy ddp --reduction fast", "fsdp fast": "--strategy fsdp --reduction fast"}
# Four processes.
CLOSE_OF_FOUR = {"3d tp 2 pp 2": "--strategy 3d --tp 2 --pp 2 --dp 1", "3d dp 2 pp 2": "--strategy 3d --tp 1 --pp 2 --dp 2",
                 "3d fsdp 2 pp 2": "--strategy 3d --tp 1 --pp 2 --dp 2 --data-axis fsdp"}
THREADS = {"dp": "--strategy dp --local-ranks 2", "mp": "--strategy mp --local-ranks 2"}


def golden(session, name):
    flags = [*session.on_device(), "--threads", 1]
    if name == "mini" and not session.quick:
        flags += ["--trajectory", GOLDEN / "trajectory.json", "--name", name]
    session.run([session.program, "verify", "--golden", GOLDEN / f"{name}.safetensors", *flags])
    return "every number within its tolerance"


# AdamW makes a whole step of a gradient that is nothing but rounding.
SGD = ("--optimizer", "sgd", "--lr", 0.05)


def parity(session, dtype, *more):
    flags = ["--dtype", dtype, *(() if dtype == "float64" else SGD), *more]
    cpu = session.train("--device", "cpu", *flags, "--threads", 4)
    found = session.train(*session.on_device(), *flags)
    return f"at most {require_close(found, cpu, PARITY[dtype], dtype):.1e} from the CPU"


def float16(session, *more):
    """The loss scale keeps gradients in float16's range: no update is skipped, and training follows float32."""
    cpu = session.train("--device", "cpu", "--dtype", "float32", *SGD, "--threads", 4)
    found = session.train(*session.on_device(), "--dtype", "float16", *SGD, *more)
    difference = require_close(found, cpu, FLOAT16, "float16")
    last = found.steps[-1]
    if last["skipped_steps"] or not last["loss_scale"] > 1:
        raise Failed(f"{last['skipped_steps']} updates are skipped, and the loss scale is {last['loss_scale']}")
    return f"at most {difference:.1e} from float32 on the CPU, with a loss scale of {last['loss_scale']:.0f}"


@functools.cache
def one_process(session):
    return session.train(*session.on_device())


def offload(session, what):
    require_equal(session.train(*session.on_device(), "--offload", what), one_process(session), f"--offload {what}")
    return "the same bits with and without"


def strategy(session, flags, is_bitwise, ranks=2):
    one = one_process(session)
    many = session.train(*flags.split(), *session.on_device(ranks), ranks=ranks)
    if is_bitwise:
        require_equal(many, one, f"{ranks} ranks")
        return f"{ranks} ranks have the bits of one"
    return f"{ranks} ranks are at most {require_close(many, one, PARITY['float64'], f'{ranks} ranks'):.1e} from one"


def tensor_parallel(session, dtype):
    """Ranks that split neurons have values of their own dtype in 16 bits."""
    flags = ["--dtype", dtype, *SGD]
    one = session.train(*flags, *session.on_device())
    two = session.train(*flags, "--strategy", "tp", *session.on_device(2), ranks=2)
    return f"2 ranks are at most {require_close(two, one, PARITY['bfloat16'], '2 ranks'):.1e} from one"


def chunks(session):
    """Chunks of which the last is shorter."""
    return "--attention", f"chunked:{12 if session.quick else 48}"


def threads(session, flags):
    if session.num_devices < 2:
        raise Skipped("it takes two devices")
    one = one_process(session)
    two = session.train(*flags.split(), "--device", session.device)
    return f"2 threads are at most {require_close(two, one, PARITY['float64'], '2 threads'):.1e} from one"


def resume(session):
    whole = session.train("--device", "cpu")
    steps = len(whole.steps)
    run_dir = session.new_folder() / "run"
    for device, end in (("cpu", 2), (session.device, 4), ("cpu", steps)):
        last = session.train("--device", device, "--steps", end, "--resume", "auto", "--checkpoint-every", 2,
                             run_dir=run_dir)
    difference = require_close(last, whole, PARITY["float64"], "CPU, device, CPU")
    return f"CPU, device, CPU: at most {difference:.1e} from a run that stayed"


def graphs(session, flags, ranks):
    """Replayed steps equal those that are launched kernel by kernel."""
    words = [*flags.split(), *session.on_device(ranks)]
    plain = session.train(*words, ranks=ranks)
    replayed = session.train(*words, "--compile", ranks=ranks)
    require_equal(replayed, plain, "--compile")
    return "the same bits with and without --compile"


def predicted(outcome):
    return sum(outcome.start["memory_predicted_bytes"].values())


def out_of_memory(session):
    """A model that one process has no room for, and two ranks have when they share it."""
    sizes = ["--tie-layers", "off", "--layers", 4 if session.quick else 8, "--width", 32 if session.quick else 256,
             "--neurons", 128 if session.quick else 1024, "--dtype", "float32", "--steps", 2, "--microbatch", 1,
             "--seq-len", 16]
    shards = [*sizes, "--strategy", "fsdp", *session.on_device(2)]
    needs = [predicted(session.train(*sizes, *session.on_device())), predicted(session.train(*shards, ranks=2))]
    limit = ["--memory-limit", sum(needs) // 2]
    refused = session.run(session.command(*sizes, *session.on_device(), *limit), status=MEMORY)
    line = error_line(refused)
    if not re.search(r"out of memory on \S+ (while|in) .*--memory-limit", line):
        raise Failed(f"{line}: it names neither the place nor a remedy")
    session.train(*shards, *limit, ranks=2)
    return f"one process ends with {MEMORY}, fsdp on 2 ranks trains in {sum(needs) / 2**21:.1f} MiB each"


def wait_for_steps(session, job, run_dir):
    end = time.monotonic() + min(FIRST_STEPS_WITHIN, session.seconds_left())
    metrics = run_dir / "metrics.jsonl"
    while time.monotonic() < end and job.poll() is None:
        if metrics.exists() and metrics.read_text().count('"step"') > 2:
            return
        time.sleep(0.05)
    if job.poll() is None and session.seconds_left() <= 0:
        raise OutOfTime()
    raise Failed(f"no step within {FIRST_STEPS_WITHIN} s, status {job.poll()}")


def killed_rank(session):
    run_dir = session.new_folder() / "run"
    job = session.start(session.command("--strategy", "ddp", *session.on_device(2), "--steps", 1000000, "--log-every", 1,
                                        ranks=2, run_dir=run_dir))
    try:
        wait_for_steps(session, job, run_dir)
        processes = list(family(job.pid))
        os.kill(next(pid for pid in processes if pid != job.pid and variable_of(pid, "RANK") == "1"), signal.SIGKILL)
        begin = time.monotonic()
        error = job.communicate(timeout=ENDS_WITHIN)[1]
        seconds = time.monotonic() - begin
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
            job.communicate()
    if job.returncode != KILLED or "rank 1" not in error.splitlines()[-1]:
        raise Failed(f"status {job.returncode}: {error[-300:]}")
    end = time.monotonic() + ENDS_WITHIN
    while (left := [pid for pid in processes if os.path.exists(f"/proc/{pid}")]) and time.monotonic() < end:
        time.sleep(0.05)
    if left:
        raise Failed(f"processes {left} are left")
    return f"all ranks ended within {seconds:.1f} s, and the report names rank 1"


def refusals(session):
    """Bad requests end in one line with their status."""
    for flags, ranks, status in ((["--device", f"{session.device}:99"], 1, DEVICE),
                                 (["--device", f"{session.device}:0", "--strategy", "ddp"], 2, USAGE)):
        line = error_line(session.run(session.command(*flags, ranks=ranks, run_dir=session.new_folder() / "run"),
                                      status=status))
        if status == USAGE and "--share-devices" not in line:
            raise Failed(f"{line}: it does not say how to ask for it")
    return "a missing device and two ranks on one are one line each"


def first_checks():
    """Name -> check of what must hold before anything is worth timing; each is one process at a time."""
    return {**{f"golden {name}": (lambda session, name=name: golden(session, name)) for name in ("mini", "three_heads")},
            **{f"parity {dtype}": (lambda session, dtype=dtype: parity(session, dtype)) for dtype in PARITY},
            "parity float16": float16,
            **{f"chunks {dtype}": (lambda session, dtype=dtype: parity(session, dtype, *chunks(session)))
               for dtype in ("float64", "bfloat16")},
            "chunks float16": lambda session: float16(session, *chunks(session))}


def single_checks():
    """Name -> check of one process at a time, which several may share a GPU with."""
    return {**{f"offload {what}": (lambda session, what=what: offload(session, what)) for what in OFFLOADS},
            "resume": resume,
            "graphs": lambda session: graphs(session, "--dtype float32", 1),
            "graphs bf16": lambda session: graphs(session, "--dtype bfloat16", 1),
            "graphs chunks": lambda session: graphs(session, f"--dtype bfloat16 {' '.join(chunks(session))}", 1)}


def ranked_checks():
    """Name -> check of several processes or devices, which must have the GPU to themselves."""
    checks = {}
    for table, is_bitwise, ranks in ((BITWISE, True, 2), (CLOSE, False, 2), (CLOSE_OF_FOUR, False, 4)):
        for name, flags in table.items():
            checks[name] = functools.partial(strategy, flags=flags, is_bitwise=is_bitwise, ranks=ranks)
    for dtype in ("bfloat16", "float16"):
        checks[f"tp {dtype}"] = functools.partial(tensor_parallel, dtype=dtype)
    for name, flags in THREADS.items():
        checks[name] = lambda session, flags=flags: threads(session, flags)
    return checks | {"out of memory": out_of_memory, "killed rank": killed_rank, "refusals": refusals,
                     "graphs ddp": lambda session: graphs(session, "--dtype float32 --strategy ddp", 2),
                     "graphs fsdp": lambda session: graphs(session, "--dtype bfloat16 --strategy fsdp", 2)}
