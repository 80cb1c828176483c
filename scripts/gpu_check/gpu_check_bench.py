"""How fast dtrain trains on a GPU, beside the PyTorch peer of scripts/peer: the bench of scripts/gpu_check.sh."""

import json
import pathlib
import re
import shutil
import statistics

from gpu_check_session import ROOT, TEXT, Failed, Skipped

WIDTHS = {256: {"config": "gpu256", "neurons": 8192, "microbatch": 32}, 512: {"config": "gpu512", "neurons": 16384, "microbatch": 16}}
LEVELS, HEADS, LENGTH = 6, 4, 512
WARMUP, STEPS = 4, 12
LONG = 8192
ATTENTIONS = ("full", "chunked:128", "chunked:256", "chunked:512", "chunked:1024", "chunked:2048")
CHOICE = 0.9
COUNTED = (3, 9)  # steps of two runs, between which the kernels of a step are counted
PEER_LIMIT = 200  # seconds, of which torch.compile takes the most
INJECTION = ROOT / "scripts/gpu_check/gpu_check_kernels.cpp"
# What kernels are for, by the first pattern that is in their names.
KINDS = {"matrix products": r"nvjet|gemm|cutlass|xmma|cublas", "dtrain's own": r"dtrain", "copies and casts": r"copy|cat_|Memcpy",
         "reductions": r"reduce|norm|softmax", "element-wise": r"elementwise|vectorized|foreach|multi_tensor|fused_adam"}
PEAK = """
import torch
n = 8192
a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
times = []
for i in range(13):
    begin.record(); a @ b; end.record(); torch.cuda.synchronize()
    times.append(begin.elapsed_time(end))
print(2 * n**3 / (sorted(times[3:])[5] * 1e-3))
"""


def flags_of(session, width):
    sizes = WIDTHS[width]
    values = {"--layers": LEVELS, "--width": width, "--heads": HEADS, "--neurons": sizes["neurons"], "--seq-len": LENGTH,
              "--global-batch": sizes["microbatch"], "--microbatch": sizes["microbatch"]}
    if session.quick:
        values |= {"--layers": 2, "--neurons": 64, "--seq-len": 16, "--global-batch": 2, "--microbatch": 2}
    values |= {"--dtype": "bfloat16", "--reduction": "auto", "--val-fraction": 0, "--checkpoint-every": "none"}
    return [*session.on_device(), *(str(word) for pair in values.items() for word in pair)]


def own_speed(session, width, *flags):
    """Tokens/s, memory and FLOPs of a token; what follows from them is added where the peak is known."""
    outcome = session.train(*flags_of(session, width), *flags, "--steps", WARMUP + STEPS)
    timed = outcome.steps[WARMUP:]
    tokens = timed[-1]["tokens"] - outcome.steps[WARMUP - 1]["tokens"]
    found = {"tokens_per_second": tokens / sum(step["step_seconds"] for step in timed),
             "median_step_seconds": statistics.median(step["step_seconds"] for step in timed),
             "peak_bytes": timed[-1]["memory_bytes"], "flops_per_token": outcome.start["flops_per_token"]}
    session.figures.setdefault(width, {})["dtrain " + " ".join(flags) if flags else "dtrain"] = found
    return f"{found['tokens_per_second']:,.0f} tokens/s"


def attention(session):
    """Tokens/s of a long sequence for each size of a chunk; --attention auto must be near the best."""
    flags = [*flags_of(session, 256), "--layers", 2, "--seq-len", 64 if session.quick else LONG, "--global-batch", 1, "--microbatch", 1]
    rates = {}
    for setting in ("auto", *ATTENTIONS):
        timed = session.train(*flags, "--attention", setting, "--steps", WARMUP + STEPS).steps[WARMUP:]
        rates[setting] = statistics.median(step["tokens_per_second"] for step in timed)
    session.figures["attention"] = rates
    text = ", ".join(f"{setting} {rate:,.0f}" for setting, rate in rates.items())
    if not session.quick and rates["auto"] < CHOICE * max(rates.values()):
        raise Failed(f"--attention auto is below {CHOICE} of the best tokens/s: {text}")
    return f"tokens/s: {text}"


def peer_speed(session, width, *flags):
    if not session.python:
        raise Skipped("it takes --python")
    words = ["--config", WIDTHS[width]["config"], "--dtype", "bfloat16", "--device", "cuda", "--fused", "--text", TEXT,
             "--warmup", WARMUP, "--steps", STEPS, "--blocks", 2, "--threads", 4]
    output = session.run([session.python, ROOT / "scripts/peer/bench_peer.py", *words, *flags], limit=PEER_LIMIT).stdout
    line = json.loads(output.splitlines()[-1])
    found = {"tokens_per_second": line["tokens_per_s"]["median"], "peak_bytes": int(line["peak_mib"] * 2**20)}
    name = "PyTorch compiled" if flags else "PyTorch eager"
    session.figures.setdefault(width, {})[name] = found
    return f"{found['tokens_per_second']:,.0f} tokens/s"


def ratio(session, width):
    figures = session.figures.get(width, {})
    if not {"dtrain", "PyTorch eager"} <= figures.keys():
        raise Skipped("one of the two was not measured")
    value = figures["dtrain"]["tokens_per_second"] / figures["PyTorch eager"]["tokens_per_second"]
    if value < 1:
        raise Failed(f"{value:.2f} times the eager peer's tokens/s, below 1.0")
    return f"{value:.2f} times the eager peer's tokens/s"


def peak(session):
    """FLOP/s of a large bf16 product, which MFU is measured against."""
    if not session.python:
        raise Skipped("it takes --python")
    flops = float(session.run([session.python, "-c", PEAK]).stdout.split()[-1])
    session.figures["peak_flops"] = flops
    return f"{flops / 1e12:.0f} TFLOP/s, which MFU is measured against"


def cupti(session):
    """(header's folder, library) of CUPTI: the toolkit's header, LibTorch's own library."""
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    toolkit = pathlib.Path(nvcc).resolve().parent.parent
    nvidia = session.torch.folder.parent / "nvidia" / "cu13"
    headers = [folder for folder in (toolkit / "include", toolkit / "extras/CUPTI/include", nvidia / "include")
               if (folder / "cupti.h").exists()]
    library = nvidia / "lib" / "libcupti.so.13"
    if not headers or not library.exists():
        raise Skipped(f"not measured: CUPTI is not under {toolkit} and {nvidia}")
    return headers[0], toolkit / "include", library


def counted_run(session, width, steps, library):
    folder = session.new_folder()
    counts = folder / "kernels.json"
    environment = {"LD_PRELOAD": library, "CUDA_INJECTION64_PATH": library, "GPU_CHECK_KERNELS": counts}
    session.train(*flags_of(session, width), "--steps", steps, run_dir=folder / "run",
                  environment={name: str(value) for name, value in environment.items()})
    if not counts.exists():
        raise Skipped("not measured: CUPTI recorded nothing")
    return json.loads(counts.read_text())


def kind_of(kernel):
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, kernel)), "other")


def of_a_step(short, long, steps):
    """What the longer of two runs did more, for each of the steps that it has more."""
    seconds = {}
    for name, (_, total) in long["kernels"].items():
        more = total - short["kernels"].get(name, (0, 0))[1]
        seconds[kind_of(name)] = seconds.get(kind_of(name), 0) + more
    busy = sum(seconds.values()) or 1
    largest = sorted(((total, calls, name) for name, (calls, total) in long["kernels"].items()), reverse=True)
    return {"busy_seconds": busy / steps, "host_waits": (long["waits"] - short["waits"]) / steps,
            "shares": {kind: value / busy for kind, value in sorted(seconds.items(), key=lambda item: -item[1])},
            "largest_of_run": largest[:12]}


def kernels(session, width):
    """What the GPU's time of a step goes to, and how often the host waits: one run less a shorter one."""
    if not session.torch:
        raise Skipped("it takes --python")
    headers, cuda, library = cupti(session)
    injected = session.folder / "gpu_check_kernels.so"
    if not injected.exists():
        session.run(["c++", "-std=c++20", "-O1", "-shared", "-fPIC", f"-I{headers}", f"-I{cuda}", INJECTION, "-o", injected,
                     library, f"-Wl,-rpath,{library.parent}"])
    short, long = (counted_run(session, width, steps, injected) for steps in COUNTED)
    found = of_a_step(short, long, COUNTED[1] - COUNTED[0])
    session.figures.setdefault(width, {})["kernels"] = found
    shares = ", ".join(f"{kind} {100 * share:.0f}%" for kind, share in found["shares"].items())
    return f"{found['host_waits']:.1f} host synchronisations a step; {shares}"


def first_bench():
    """Name -> measurement; the peer compiled comes last of all, since it may take minutes."""
    checks = {"peak": peak}
    for width in WIDTHS:
        checks |= {f"D {width} dtrain": lambda session, width=width: own_speed(session, width),
                   f"D {width} PyTorch eager": lambda session, width=width: peer_speed(session, width),
                   f"D {width} ratio": lambda session, width=width: ratio(session, width)}
    for width in WIDTHS:
        checks |= {f"D {width} dtrain --compile": lambda session, width=width: own_speed(session, width, "--compile"),
                   f"D {width} kernels": lambda session, width=width: kernels(session, width)}
    return checks | {"attention": attention}


def last_bench():
    return {f"D {width} PyTorch compiled": lambda session, width=width: peer_speed(session, width, "--compile")
            for width in WIDTHS}


def table(figures):
    """The lines of the bench's table: one for each width and program."""
    peak_flops = figures.get("peak_flops")
    lines = [f"{'':28}{'tokens/s':>12}{'causal MFU':>12}{'peak memory':>14}{'over eager':>12}"]
    for width in WIDTHS:
        programs = figures.get(width, {})
        flops = programs.get("dtrain", {}).get("flops_per_token")
        eager = programs.get("PyTorch eager", {}).get("tokens_per_second")
        for name, found in programs.items():
            rate = found.get("tokens_per_second")
            if rate is None:
                continue
            mfu = f"{100 * rate * flops / peak_flops:.1f}%" if flops and peak_flops else "-"
            lines.append(f"{f'D {width} {name}':28}{rate:>12,.0f}{mfu:>12}{found['peak_bytes'] / 2**20:>10,.0f} MiB"
                         f"{f'{rate / eager:.2f}' if eager else '-':>12}")
    return lines
