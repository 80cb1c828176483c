#!/usr/bin/env python3
"""Plants defects in the library, one at a time, and shows the tests that notice each. Not part of CI: minutes.

    scripts/soak_mutations.py [WORD]     only the mutations whose name contains WORD

The tree stays as it is: a changed copy of one source is compiled with the build's own command into a temporary
folder, and linked before the build's libraries. Needs a finished release build. Exits with 1 if a mutation survives.
"""

import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
from typing import NamedTuple

SOURCE = pathlib.Path(__file__).resolve().parent.parent
BUILD = SOURCE / "build" / "release"
LIMIT = 600  # seconds for a test program; a mutant may well wait for its deadlines


class Mutation(NamedTuple):
    name: str
    file: str  # under lib/dtrain
    before: str
    after: str
    program: str  # whose tests are to notice


MUTATIONS = [
    Mutation("a gradient scaled by a constant", "parallel/step_engine.cpp",
             "1.0 / static_cast<double>(global_tokens_)", "1.001 / static_cast<double>(global_tokens_)", "parity_tests"),
    Mutation("a gradient scaled by the number of ranks", "parallel/step_engine.cpp",
             "1.0 / static_cast<double>(global_tokens_)",
             "static_cast<double>(data_group_.size()) / static_cast<double>(global_tokens_)", "parity_tests"),
    Mutation("a skipped microbatch", "parallel/gradient_store.cpp", "DTRAIN_CHECK(index_ + 1 < num_microbatches_);",
             "if (index_ == 0) current_->flat().zero_();", "parity_tests"),
    Mutation("two ranks reading the same samples", "train/trainer.cpp", ".dp_rank = job.data_group().rank()",
             ".dp_rank = 0", "unit_tests"),
    Mutation("a loader that deals every rank the same samples", "data/loader.cpp", "options_.dp_rank", "0",
             "parity_tests"),
    Mutation("a dropout key without the sample", "parallel/block_runner.cpp", ".first_sample = input.first_sample",
             ".first_sample = 0", "parity_tests"),
    Mutation("a dropout key that counts a rank's own samples", "parallel/step_engine.cpp",
             ".first_sample = batch.first_sample", ".first_sample = batch.first_sample % 2", "parity_tests"),
    Mutation("a missing merge of the tree", "parallel/gradient_store.cpp", "merge > 0; --merge", "merge > 1; --merge",
             "parity_tests"),
    Mutation("a bucket that is never reduced", "parallel/data/replicate_axis.cpp", "if (group_.size() > 1)",
             "if (group_.size() > 1 && num_launched_ != 1)", "parity_tests"),
    Mutation("clipping by the sum of squares", "optim/global_norm.cpp", "return std::sqrt(total);", "return total;",
             "parity_tests"),
    Mutation("clipping left out", "parallel/step_engine.cpp", "flat.mul_(factor);", "", "parity_tests"),
    Mutation("a parameter without a gradient keeps the last step's", "parallel/gradient_store.cpp",
             "current_->view(id).zero_();", "", "unit_tests"),
    Mutation("communication in every microbatch", "parallel/step_engine.cpp",
             "if (action.microbatch + 1 == options_.grad_accum_steps) {", "if (action.microbatch >= 0) {", "unit_tests"),
    Mutation("buckets only at the end", "parallel/data/replicate_axis.cpp", "  launch_ready();\n",
             "  if (id == 0) launch_ready();\n", "unit_tests"),
    Mutation("an update in spite of a loss that is not finite", "train/trainer.cpp", "if (!is_refused(result)) engine",
             "(void)is_refused(result), engine", "unit_tests"),
    Mutation("decay on everything", "optim/adamw.cpp", ".decay ? options_.weight_decay : 0.0",
             ".decay ? options_.weight_decay : options_.weight_decay", "unit_tests"),
    Mutation("state without the second moment", "parallel/step_engine.cpp", "optimizer_.second_moment().view(id)",
             "optimizer_.first_moment().view(id)", "unit_tests"),
    Mutation("a save that is written from the state itself", "checkpoint/saver.cpp",
             "staging_ ? staging_->take(owned) : bytes_of(owned)", "bytes_of(owned)", "parity_tests"),
    Mutation("a rank that saves another's share", "checkpoint/state.cpp", "rows * index / count",
             "rows * ((index + 1) % count) / count", "parity_tests"),
    Mutation("runs of a box that are put in one place", "checkpoint/store/reader.cpp",
             "to.subspan(static_cast<std::size_t>(run.in_b * width),", "to.subspan(0,", "parity_tests"),
    Mutation("a resume without the optimizer's state", "checkpoint/reader_source.cpp",
             "if (type == piece.tensor.scalar_type()) {",
             "if (piece.name.starts_with(\"optimizer.exp_avg_sq\")) return;\n  if (type == piece.tensor.scalar_type()) {",
             "parity_tests"),
    Mutation("a verification that skips other ranks' files", "checkpoint/choose.cpp",
             "for (const std::string& damage : comm::exchange_texts(group, own)) {",
             "for (const std::string& damage : {comm::exchange_texts(group, own)[0]}) {", "parity_tests"),
    Mutation("a commit in spite of a rank that failed", "checkpoint/saver.cpp",
             "const bool is_whole = report_.error.empty();", "report_.error = {}; const bool is_whole = true;",
             "parity_tests"),
    Mutation("a metrics file that keeps what was undone", "metrics/metrics_file.cpp",
             "found->get<std::int64_t>() <= step", "found->get<std::int64_t>() <= step + 1", "unit_tests"),
    Mutation("a verifier that lets NaN pass", "train/verifier.cpp",
             "std::isfinite(check.error) ? check.error : INFINITY", "std::isfinite(check.error) ? check.error : 0.0",
             "golden_tests"),
    Mutation("a verifier that knows its own rows alone", "train/verifier.cpp", "comm::ReduceOp::max).wait()",
             "comm::ReduceOp::max).wait(); if (job_.data_group().rank() == 0) errors.assign(errors.size(), 0.0)",
             "golden_tests"),
]


def run_in_build(command):
    subprocess.run(command, cwd=BUILD, check=True, stdout=subprocess.DEVNULL)


def compile_mutant(database, original, mutant, target):
    words = shlex.split(database[str(original)])
    words[words.index("-o") + 1] = str(target)
    words[words.index("-c") + 1] = str(mutant)
    # Changed code may leave something unused.
    run_in_build(words + ["-Wno-error", "-w", f"-I{original.parent}"])


def link_mutant(program, mutant, target):
    commands = subprocess.run(["ninja", "-t", "commands", f"bin/{program}"], cwd=BUILD, check=True,
                              capture_output=True, text=True).stdout
    line = next(line for line in commands.splitlines() if f" -o bin/{program} " in line)
    words = shlex.split(next(part for part in line.split(" && ") if f" -o bin/{program} " in part))
    place = words.index("-o")
    words[place + 1] = str(target)
    run_in_build(words[:place] + [str(mutant)] + words[place:])


def failed_tests(program):
    """Names of the failed test cases, or what else went wrong; empty if all passed."""
    try:
        result = subprocess.run([program, "-r", "xml"], capture_output=True, text=True, timeout=LIMIT, check=False)
    except subprocess.TimeoutExpired:
        return [f"(no end within {LIMIT} s)"]
    if result.returncode == 0:
        return []
    cases = re.split(r"<TestCase ", result.stdout)[1:]
    if result.returncode in (126, 127):
        raise SystemExit(f"{program} cannot be run: {result.stderr}")
    names = [re.match(r'name="([^"]*)"', case)[1] for case in cases if 'OverallResult success="false"' in case]
    return names or [f"(ended with status {result.returncode})"]


def try_mutation(mutation, database, folder):
    original = SOURCE / "lib" / "dtrain" / mutation.file
    text = original.read_text()
    if mutation.before not in text:
        print(f"STALE     {mutation.name}: {mutation.file} has no '{mutation.before}'", flush=True)
        return False
    source, mutant, program = folder / "mutant.cpp", folder / "mutant.o", folder / "program"
    source.write_text(text.replace(mutation.before, mutation.after, 1))
    compile_mutant(database, original, source, mutant)
    link_mutant(mutation.program, mutant, program)
    names = failed_tests(program)
    print(f"{'noticed ' if names else 'SURVIVED'}  {mutation.name} ({mutation.program})", flush=True)
    for name in names:
        print(f"            {name}", flush=True)
    return bool(names)


def main():
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    database = {entry["file"]: entry["command"]
                for entry in json.loads((BUILD / "compile_commands.json").read_text())}
    with tempfile.TemporaryDirectory(prefix="dtrain-mutations-") as folder:
        results = [try_mutation(mutation, database, pathlib.Path(folder))
                   for mutation in MUTATIONS if word in mutation.name]
    print(f"{sum(results)} of {len(results)} mutations noticed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
