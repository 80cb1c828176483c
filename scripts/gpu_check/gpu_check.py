"""The program of scripts/gpu_check.sh: checks dtrain on a GPU and measures it, within a number of minutes."""

import argparse
import concurrent.futures
import dataclasses
import datetime
import importlib.util
import json
import os
import pathlib
import signal
import sys
import tempfile
import time

import gpu_check_bench
import gpu_check_build
import gpu_check_correct
from gpu_check_session import ROOT, Failed, OutOfTime, Session, Skipped, show

JOBS = 3  # checks of one process at once; those of several, and the bench, have the GPU to themselves
BUILT = ROOT / "build" / "gpu_check" / "release"
FAKE_DEVICES = 8
OUTCOMES = {"PASS": "passed", "FAIL": "failed", "SKIP": "skipped", "LATE": "left out for lack of time"}


@dataclasses.dataclass(frozen=True)
class Result:
    name: str
    outcome: str  # a word of OUTCOMES
    seconds: float
    detail: str


def run_check(session, name, check):
    begin = time.monotonic()
    try:
        if session.seconds_left() <= 0:
            raise OutOfTime()
        outcome, detail = "PASS", check(session)
    except OutOfTime as reason:
        outcome, detail = "LATE", str(reason)
    except Skipped as reason:
        outcome, detail = "SKIP", str(reason)
    except Failed as problem:
        outcome, detail = "FAIL", str(problem)
    except Exception as error:  # the checks themselves may have a defect: the others still count
        outcome, detail = "FAIL", f"{type(error).__name__}: {error}"
    result = Result(name, outcome, time.monotonic() - begin, detail)
    if not session.is_ended:
        show(f"{outcome}  {result.seconds:6.1f} s  {name}: {detail}")
    return result


def prepare(session, options):
    """The first check: finds or builds the programs, and finds the devices and the torch to compare with."""
    session.python = options.python
    if options.device == "fake":
        session.program = options.built / "fake" / "bin" / "dtrain"
        session.num_devices = FAKE_DEVICES
        return f"{session.program}, rehearsed on a fake accelerator"
    if options.build_only:
        session.torch = gpu_check_build.build_here(session, options.python, options.deps, session.build)
    else:
        session.torch = gpu_check_build.find_torch(session, options.python)
    session.num_devices = len(session.torch.gpus)
    gpus = ", ".join(gpu["name"] for gpu in session.torch.gpus)
    return f"torch {session.torch.version}, {gpus}"


def stages():
    """(name -> check, how many at once), in order."""
    return ((gpu_check_correct.first_checks(), JOBS), (gpu_check_bench.first_bench(), 1), (gpu_check_correct.single_checks(), JOBS),
            (gpu_check_correct.ranked_checks(), 1), (gpu_check_bench.last_bench(), 1))


def check_all(session, options):
    """Yields the result of each check, in order."""
    first = run_check(session, "build", lambda session: prepare(session, options))
    yield first
    if options.build_only or first.outcome != "PASS":
        return
    for checks, jobs in stages():
        chosen = [item for item in checks.items() if not options.only or any(text in item[0] for text in options.only)]
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            yield from pool.map(lambda item: run_check(session, *item), chosen)


def print_report(session, results, seconds):
    print(f"{'check':32}{'':6}{'seconds':>8}  found")
    for result in results:
        print(f"{result.name:32}{result.outcome:6}{result.seconds:>8.1f}  {result.detail}")
    print()
    print("\n".join(gpu_check_bench.table(session.figures)))
    counts = [f"{sum(result.outcome == word for result in results)} {text}" for word, text in OUTCOMES.items()]
    print(f"\ngpu_check: {', '.join(counts)}, in {seconds:.0f} s")


def write_report(session, options, results, seconds):
    report = {"time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "device": options.device,
              "seconds": seconds, "results": [dataclasses.asdict(result) for result in results],
              "figures": {str(key): value for key, value in session.figures.items()}}
    if session.torch:
        report["torch"] = {"version": session.torch.version, "cuda": session.torch.cuda, "gpus": session.torch.gpus}
    (options.out / "gpu_check.json").write_text(json.dumps(report, indent=1) + "\n")


class Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(2, f"gpu_check.sh: error: {message}\n")


def check_programs(parser, options):
    """Refuses what no check could begin with."""
    program = (options.built / "fake" if options.device == "fake" else options.built) / "bin" / "dtrain"
    if not options.build_only and not program.exists():
        parser.error(f"--built {options.built}: there is no {program}: build it with --build-only")
    if options.device == "cuda" and importlib.util.find_spec("torch") is None:
        parser.error(f"--python {options.python} has no torch: name a Python with torch {gpu_check_build.TORCH} for CUDA")


def make_room(parser, out):
    """Removes the report of an earlier run, which must not be taken for this one's."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name in ("gpu_check.json", "gpu_check.log"):
            (out / name).unlink(missing_ok=True)
    except OSError as error:
        parser.error(f"--out {out}: {error.strerror}: name a writable folder")


def end_on_signals(session):
    """Programs of checks have process groups of their own, which no signal for this one reaches."""
    def end(number, _):
        session.end()
        show(f"gpu_check.sh: ended by {signal.Signals(number).name}")
        sys.exit(128 + number)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)


def parse_options():
    parser = Parser(prog="scripts/gpu_check.sh", description="Checks and measures dtrain on a GPU.", allow_abbrev=False)
    parser.add_argument("--python", help="a Python with torch 2.11.0 for CUDA")
    parser.add_argument("--deps", type=pathlib.Path, metavar="FOLDER", help="headers collected by --pack [.deps/headers, else the system's]")
    parser.add_argument("--minutes", type=float, default=9, help="time limit; checks that would exceed it are skipped [9]")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "gpu_check", help="folder for gpu_check.json and gpu_check.log")
    parser.add_argument("--pack", type=pathlib.Path, metavar="FOLDER", help="only collect the headers")
    parser.add_argument("--device", choices=["cuda", "fake"], default="cuda", help="fake: a rehearsal [cuda]")
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="only checks whose names contain TEXT; repeatable")
    parser.add_argument("--build-only", action="store_true", help="build without checks")
    parser.add_argument("--built", type=pathlib.Path, metavar="FOLDER", help=f"build folder [{BUILT.relative_to(ROOT)}]")
    options = parser.parse_args()
    for name in ("built", "out", "deps", "pack"):
        folder = getattr(options, name)
        setattr(options, name, folder and folder.resolve())  # programs run in another folder
    if options.python and os.sep in options.python:
        options.python = os.path.abspath(options.python)
    if options.device == "fake" and (options.build_only or not options.built):
        parser.error("--device fake takes --built and no --build-only: the fake accelerator is built with the tests")
    names = [name for checks, _ in stages() for name in checks]
    for text in options.only:
        if not any(text in name for name in names):
            parser.error(f"--only {text}: no check name contains this; the checks are {', '.join(names)}")
    options.built = options.built or BUILT
    if options.device == "cuda" and not options.python and not options.pack:
        parser.error("--python is missing: name one with torch 2.11.0 for CUDA")
    if not options.pack:
        check_programs(parser, options)
        make_room(parser, options.out)
    return options


def main():
    options = parse_options()
    if options.pack:
        print(f"gpu_check: headers are in {gpu_check_build.pack(options.pack)}")
        return 0
    begin = time.monotonic()
    results = []
    with tempfile.TemporaryDirectory(prefix="dtrain-gpu-check-") as runs:
        session = Session(build=options.built, program=options.built / "bin" / "dtrain", device=options.device, num_devices=0,
                          folder=pathlib.Path(runs), log=options.out / "gpu_check.log", ends=begin + 60 * options.minutes, quick=options.device == "fake")
        end_on_signals(session)
        for result in check_all(session, options):
            results.append(result)
            write_report(session, options, results, time.monotonic() - begin)  # an early end keeps what was found
    print_report(session, results, time.monotonic() - begin)
    return 0 if results[0].outcome == "PASS" and not {"FAIL", "LATE"} & {result.outcome for result in results} else 1


if __name__ == "__main__":
    sys.exit(main())
