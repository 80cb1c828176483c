#!/usr/bin/env python3
"""Plants defects in the library, one at a time, and shows the first test that notices each. Not part of CI: minutes.

    scripts/soak/soak_mutations.py [WORD]     only the mutations whose name contains WORD

The sources stay as they are: a changed copy of one is compiled with the build's own command into a temporary folder,
and linked before the build's libraries. Needs a finished build of the preset dev, which compiles each file alone, and
whose test programs pass. Exits with 1 if a mutation survives.
"""

import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
from typing import NamedTuple

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BUILD = SOURCE / "build" / "dev"
LIMIT = 600  # seconds for a test program; a mutant may well wait for its deadlines


class Mutation(NamedTuple):
    name: str
    file: str  # under lib/dtrain
    before: str
    after: str
    program: str  # whose tests are to notice
    through: str = ""  # of a header: the source under lib/dtrain that is compiled with it


MUTATIONS = [
    Mutation("a gradient scaled by a constant", "parallel/engine/step_engine.cpp",
             "updater_.loss_scale() / static_cast<double>(num_tokens)",
             "1.001 * updater_.loss_scale() / static_cast<double>(num_tokens)", "parity_tests"),
    Mutation("a gradient scaled by the number of ranks", "parallel/engine/step_engine.cpp",
             "updater_.loss_scale() / static_cast<double>(num_tokens)",
             "updater_.loss_scale() * static_cast<double>(setup_.groups.along(mesh::Axis::dp).size()) / static_cast<double>(num_tokens)",
             "parity_tests"),
    Mutation("a gradient scaled by the ranks of the tensor axis", "parallel/engine/step_engine.cpp",
             "updater_.loss_scale() / static_cast<double>(num_tokens)",
             "updater_.loss_scale() / static_cast<double>(num_tokens) * static_cast<double>("
             "setup_.groups.along(mesh::Axis::tp).size())", "parity_tests"),
    Mutation("a gradient that stages share and do not sum", "parallel/engine/internal/executor.cpp",
             "sums.push_back(stages.all_reduce(axis_.gradients().gradients().slice(own)));", "(void)own, (void)stages;",
             "parity_tests"),
    Mutation("a norm that counts what stages share once for each", "parallel/engine/engine_setup.cpp",
             "return stages(id).rank() == 0 && (", "return (", "parity_tests"),
    Mutation("a split head that turns by the frequencies of the first slice", "model/bdh/internal/rope.cpp",
             "frequencies.const_data_ptr<float>() + neurons.first;", "frequencies.const_data_ptr<float>();", "parity_tests"),
    Mutation("dropout by a rank's own neurons", "model/bdh/internal/bdh_blocks.cpp", ".first_neuron = slice_.first_neuron",
             ".first_neuron = 0 * slice_.first_neuron", "parity_tests"),
    Mutation("activations that arrive in another chunk", "parallel/engine/make_stage.cpp",
             "place.shape.part(place.stage, chunk)", "place.shape.part(place.stage, place.shape.chunks() - 1 - chunk)",
             "parity_tests"),
    Mutation("a slice that is saved in another one's place", "parallel/engine/engine_setup.cpp",
             "+= cut->begin;", "+= cut->whole - cut->begin - model_.parameters[id].shape[static_cast<std::size_t>(cut->dim)];",
             "parity_tests"),
    Mutation("a skipped microbatch", "parallel/data/internal/gradient_store.cpp", "DTRAIN_CHECK(index_ + 1 < num_microbatches_);",
             "if (index_ == 0) current_->flat().zero_();", "parity_tests"),
    Mutation("two ranks reading the same samples", "train/training_loop.cpp", ".assignment = context.engine.microbatch_assignment()",
             ".assignment = {.num_ranks = context.engine.microbatch_assignment().num_ranks, .grad_accum = context.engine.microbatch_assignment().grad_accum}", "unit_tests"),
    Mutation("a loader that deals every rank the same samples", "data/loader.cpp", "assignment.number_of(id)",
             "MicrobatchAssignment{.grad_accum = assignment.grad_accum}.number_of(id)", "parity_tests"),
    Mutation("a dropout key without the sample", "parallel/engine/internal/block_runner.cpp", ".first_sample = input.first_sample",
             ".first_sample = input.first_sample * 0", "parity_tests"),
    Mutation("a dropout key that counts a rank's own samples", "parallel/engine/internal/executor.cpp",
             ".first_sample = on_device({&batch.first_sample, 1}, {}, world)",
             ".first_sample = on_device({&batch.first_sample, 1}, {}, world).remainder(2)", "parity_tests"),
    Mutation("a missing merge of the tree", "parallel/data/internal/gradient_store.cpp", "merge > 0; --merge", "merge > 1; --merge",
             "parity_tests"),
    Mutation("a bucket that is never reduced", "parallel/data/internal/bucket_reducer.cpp", "    all_reducer_->begin(range,",
             "    if (num_launched_ != 1) all_reducer_->begin(range,", "parity_tests"),
    Mutation("residuals that are forgotten", "parallel/compress/all_reducer.cpp", "std::swap(residual_, next_);", "", "unit_tests"),
    Mutation("residuals of steps without an update", "parallel/compress/all_reducer.cpp",
             "if (!has_updated) return;", "", "unit_tests"),
    Mutation("residuals of stages that fall together", "parallel/engine/whole_model.cpp",
             "stages.rank() * replicas.size() + replicas.rank()", "replicas.rank()", "parity_tests"),
    Mutation("clipping by the sum of squares", "optim/global_norm.cpp", "by_name_)).sqrt_();", "by_name_));",
             "parity_tests"),
    Mutation("clipping left out", "parallel/engine/internal/updater.cpp", "optim::scale_by(gradients.slice(own), factor);", "(void)own;", "parity_tests"),
    Mutation("a parameter without a gradient keeps the last step's", "parallel/data/internal/gradient_store.cpp",
             "gradient.zero_();", "", "unit_tests"),
    Mutation("communication in every microbatch", "parallel/action.cpp",
             "if (i == last_forward)", "if (action.kind == ActionKind::forward)", "unit_tests"),
    Mutation("buckets only at the end", "parallel/data/internal/bucket_reducer.cpp", "  launch_ready();\n",
             "  if (id == param::ParameterId(0)) launch_ready();\n", "unit_tests"),
    Mutation("a shard that begins 64 elements late", "parallel/data/internal/sharded_reducers.cpp",
             "return sums_.at(level).slice(layout_.shard_range(unit, shard_));",
             "const auto own = layout_.shard_range(unit, shard_); return sums_.at(level).flat().narrow(0, "
             "std::min(sums_.at(level).slice(own).storage_offset() + 64, sums_.at(level).flat().numel() - own.size()), own.size());",
             "unit_tests"),
    Mutation("sharded gradients that are reduced in the last microbatch alone", "parallel/data/internal/unit_schedule.cpp",
             "options_.reduce_every_microbatch || microbatch == last_microbatch", "microbatch == last_microbatch",
             "unit_tests"),
    Mutation("gradients of frozen parameters that are reduced", "parallel/data/internal/unit_schedule.cpp",
             "if (uses_.frozen.contains(unit)) continue;", "", "unit_tests"),
    Mutation("replicas that are not summed", "parallel/data/internal/sharded_reducers.cpp",
             "replicas_->begin(layout_.shard_range(id, shard_), shard_of(id, 0));", "(void)id;", "parity_tests"),
    Mutation("replicas of whole gradients that are not summed", "parallel/data/internal/sharded_reducers.cpp",
             "[this, own, shard] { replicas_->begin(own, shard); }", "[] {}", "parity_tests"),
    Mutation("a gather of what the first gather brought", "parallel/data/internal/parameter_store.cpp",
             "unit.sent = unit.part.wait().to(options_.compute_dtype);",
             "static thread_local std::map<param::UnitId, at::Tensor> old; if (!old.contains(id)) old[id] = "
             "unit.part.values.clone(); unit.sent = old[id].to(options_.compute_dtype);", "unit_tests"),
    Mutation("a unit that is not waited for", "parallel/data/data_axis.cpp", "parameters_.wait(unit);", "(void)unit;",
             "parity_tests"),
    Mutation("a sum of shards from left to right", "parallel/data/internal/sharded_reducers.cpp",
             "if (in_tree_order) return comm::tree_step(index, count);", "(void)in_tree_order;", "parity_tests"),
    Mutation("a unit's gradient that keeps the last use's", "parallel/data/internal/sharded_reducers.cpp",
             "const bool is_first = !unit.has_gradient[place];", "const bool is_first = true;", "parity_tests"),
    Mutation("microbatches dealt as if nothing were summed at once", "parallel/engine/step_engine.cpp",
             "is_reduced_at_once ? setup_.groups.shards().size() : 1", "is_reduced_at_once ? 1 : 1", "parity_tests"),
    Mutation("a norm of one shard", "parallel/engine/internal/updater.cpp", "setup_.groups.shards().all_reduce(sums).wait();", "",
             "parity_tests"),
    Mutation("blocks of the norm cut where the shard begins", "optim/global_norm.cpp", "return (range.begin - begin) / size != (range.end - 1 - begin) / size;", "(void)size; (void)begin; return false;",
             "parity_tests"),
    Mutation("gradients of a scaled loss that are not scaled back", "parallel/engine/internal/updater.cpp",
             "optim::clip_factor(norm, max_norm).div_(loss_scale());", "optim::clip_factor(norm, max_norm);", "unit_tests"),
    Mutation("an overflow that leaves the scale alone", "optim/grad_scaler.cpp", "state[kScale] = std::max(state[kScale] / 2, kSmallestScale);", "", "unit_tests"),
    Mutation("bfloat16 gradients that are summed in bfloat16", "param/parameter_use.cpp",
             "view.add_(grad);",
             "view.copy_(view.to(grad.scalar_type()) + grad);", "unit_tests"),
    Mutation("a free before the backward that uses the unit", "parallel/data/internal/unit_schedule.cpp",
             "compute_index_[residency.last] + 1 == compute_index_[action]", "false", "unit_tests"),
    Mutation("a prefetch beyond the limit", "parallel/data/internal/unit_schedule.cpp", "taken >= options_.limit_gathers",
             "taken > options_.limit_gathers", "unit_tests"),
    Mutation("boxes of a run that lose its last row", "checkpoint/format/box.cpp", "if (end_whole * row < end) add_part_of_row(end_whole * row, end);", "", "plain_tests"),
    Mutation("an update in spite of a loss that is not finite", "optim/optimizers.cpp",
             "if (!*may_update.const_data_ptr<bool>()) return;\n  const auto step", "(void)may_update;\n  const auto step", "unit_tests"),
    Mutation("decay on everything", "optim/internal/optimizer.cpp", ".decay ? weight_decay : 0.0",
             ".decay ? weight_decay : weight_decay", "unit_tests"),
    Mutation("an update that rounds a product and a sum at once", "optim/update_element.h", "f.beta1 * first + f.first_gain * g;",
             "std::fma(f.beta1, first, f.first_gain * g);", "unit_tests", through="optim/internal/update_rules.cpp"),
    Mutation("state with the weights in a moment's place", "parallel/engine/whole_model.cpp", "*part.arena, state);",
             "parameters_.masters(), state);", "unit_tests"),
    Mutation("an update of offloaded values that is not brought back", "parallel/engine/internal/updater.cpp",
             "memory_.store(now_[i].values, arenas_[i]->slice(range));", "(void)range;", "device_tests"),
    Mutation("a save that is written from the state itself", "checkpoint/saver.cpp",
             "copy != nullptr ? copy->take(own) : bytes_of(own)", "bytes_of(own)", "parity_tests"),
    Mutation("a rank that saves another's share", "checkpoint/state.cpp", "rows * index / count",
             "rows * ((index + 1) % count) / count", "parity_tests"),
    Mutation("runs of a box that are put in one place", "checkpoint/store/reader.cpp",
             "to.subspan(static_cast<std::size_t>(run.in_b * width),", "to.subspan(0,", "parity_tests"),
    Mutation("a resume without the optimizer's state", "checkpoint/state.cpp",
             "if (type == piece.tensor.scalar_type() && piece.tensor.is_cpu()) {",
             "if (piece.name.starts_with(\"optimizer.exp_avg_sq\")) return;\n  if (type == piece.tensor.scalar_type() && piece.tensor.is_cpu()) {",
             "parity_tests"),
    Mutation("a verification that skips other ranks' files", "checkpoint/choose.cpp",
             "for (const std::string& damage : comm::exchange_texts(group, own)) {",
             "for (const std::string& damage : {comm::exchange_texts(group, own)[0]}) {", "parity_tests"),
    Mutation("a commit in spite of a rank that failed", "checkpoint/saver.cpp",
             "const bool is_whole = report_.error.empty();", "report_.error = {}; const bool is_whole = true;",
             "parity_tests"),
    Mutation("a metrics file that keeps what was undone", "metrics/metrics_file.cpp",
             "found->get<std::int64_t>() <= step", "found->get<std::int64_t>() <= step + 1", "unit_tests"),
    Mutation("a verifier that lets NaN pass", "commands/internal/verifier.cpp",
             "std::isfinite(check.error) ? check.error : INFINITY", "std::isfinite(check.error) ? check.error : 0.0",
             "golden_tests"),
    Mutation("a verifier that knows its own rows alone", "commands/internal/verifier.cpp", "comm::ReduceOp::max).wait_host()",
             "comm::ReduceOp::max).wait_host(); if (world.rank() == 0) errors.assign(errors.size(), 0.0)",
             "golden_tests"),
    Mutation("ranks that are threads and tell a consequence instead of its cause", "comm/local/local_world.cpp",
             "if (error_ && (is_cause_ || !is_cause)) return;", "if (error_) return;", "dist_tests"),
    Mutation("a pipeline whose warm-up is one forward short", "parallel/pipeline/schedule.cpp",
             "      return later_stages;",
             "      return later_stages > 0 ? later_stages - 1 : 0;", "plain_tests"),
    Mutation("a pipeline of chunks whose warm-up is too short", "parallel/pipeline/schedule.cpp",
             "return 2 * later_stages +",
             "return later_stages +", "plain_tests"),
    Mutation("a pipeline whose chunks go back in the order of their forwards", "parallel/pipeline/schedule.cpp",
             "index.chunk = shape.chunks() - 1 - index.chunk;",
             "", "plain_tests"),
    Mutation("a pipeline that posts receives when they are needed", "parallel/pipeline/schedule.cpp",
             "    if (i == 0) add(receive_before(shape, stage, order[i]));\n    if (i + 1 < order.size()) add(receive_before(shape, stage, order[i + 1]));",
             "    add(receive_before(shape, stage, order[i]));", "plain_tests"),
    Mutation("a pipeline that does not send the last microbatch", "parallel/pipeline/schedule.cpp",
             "    add(send_after(shape, stage, order[i]));",
             "    if (order[i].microbatch.value() + 1 < shape.microbatches) add(send_after(shape, stage, order[i]));", "plain_tests"),
    Mutation("a pipeline check without the order of messages", "parallel/pipeline/check.cpp",
             "  check_order_of_messages(shape, schedules);\n",
             "", "plain_tests"),
    Mutation("a pipeline check that does not see a deadlock", "parallel/pipeline/check.cpp",
             "    require_end();\n",
             "", "plain_tests"),
    Mutation("a pipeline check that takes backwards in any order", "parallel/pipeline/check.cpp",
             "if (pass.microbatch > MicrobatchId(0)) {",
             "if (pass.microbatch > MicrobatchId(1000)) {", "plain_tests"),
    Mutation("a pipeline balanced as if every stage kept as much", "parallel/pipeline/balance.cpp",
             "return in_flight_[static_cast<std::size_t>(part)] * sum",
             "return sum", "plain_tests"),
    Mutation("a pipeline balanced without its head", "parallel/pipeline/balance.cpp",
             "part == num_parts_ - 1 ? end + 2 : end + 1",
             "end + 1", "plain_tests"),
    Mutation("a pipeline with one microbatch by default", "config/values/batch.cpp",
             "batch.grad_accum = layout.pp;",
             "batch.grad_accum = 1;", "plain_tests"),
    Mutation("a hybrid shard that counts tensor-parallel ranks", "config/resolve/resolve_layout.cpp",
             "launch.local_world_size / stride",
             "launch.local_world_size / (0 * stride + 1)", "plain_tests"),
    Mutation("a 3d layout that does not read --data-axis", "config/values/layout.cpp",
             "value_or(layout.data_axis)",
             "value_or(DataAxisKind::ddp)", "plain_tests"),
    Mutation("a fused rotation whose gradient turns forward", "model/transformer/internal/fused_rows.cpp",
             "saved[0], saved[1], -1)", "saved[0], saved[1], 1)", "unit_tests"),
    Mutation("a norm's weight that learns from the first rows alone", "model/transformer/internal/fused_rows.cpp",
             "block < blocks; ++block", "block < 1; ++block", "unit_tests"),
    Mutation("a nucleus of all tokens", "model/token_sampler.cpp", "end < interval_of.last() && sum + sums[end] < wanted",
             "end < interval_of.last()",
             "unit_tests"),
]


def run_in_build(command):
    subprocess.run(command, cwd=BUILD, check=True, stdout=subprocess.DEVNULL)


def compile_mutant(database, mutation, text, folder):
    """Compiles the changed text to folder/mutant.o."""
    original = SOURCE / "lib/dtrain" / (mutation.through or mutation.file)
    words = shlex.split(database[str(original)])
    words[words.index("-o") + 1] = str(folder / "mutant.o")
    if mutation.through:
        header = folder / "include/dtrain" / mutation.file
        header.parent.mkdir(parents=True, exist_ok=True)
        header.write_text(text)
        words.insert(1, f"-I{folder}/include")
    else:
        source = folder / "mutant.cpp"
        source.write_text(text)
        words[words.index("-c") + 1] = str(source)
    # Changed code may leave something unused.
    run_in_build(words + ["-Wno-error", "-w", f"-I{original.parent}"])


def link_mutant(program, mutant, target):
    commands = subprocess.run(["ninja", "-t", "commands", f"bin/{program}"], cwd=BUILD, check=True,
                              capture_output=True, text=True).stdout
    line = next(line for line in commands.splitlines() if f" -o bin/{program} " in line)
    words = shlex.split(next(part for part in line.split(" && ") if f" -o bin/{program} " in part))
    words[words.index("-o") + 1] = str(target)
    run_in_build(words[:1] + [str(mutant)] + words[1:])  # first, so that its inline functions are taken


def failed_tests(program):
    """Names of the test cases that failed before the program gave up, or what else went wrong; empty if all passed."""
    try:
        result = subprocess.run([program, "--abort", "-r", "xml"], capture_output=True, text=True, timeout=LIMIT, check=False)
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
    try:
        compile_mutant(database, mutation, text.replace(mutation.before, mutation.after, 1), folder)
    except subprocess.CalledProcessError:
        print(f"STALE     {mutation.name}: the changed {mutation.file} does not compile", flush=True)
        return False
    program = folder / "program"
    link_mutant(mutation.program, folder / "mutant.o", program)
    names = failed_tests(program)
    print(f"{'noticed ' if names else 'SURVIVED'}  {mutation.name} ({mutation.program})", flush=True)
    for name in names:
        print(f"            {name}", flush=True)
    return bool(names)


def main():
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    database = {entry["file"]: entry["command"]
                for entry in json.loads((BUILD / "compile_commands.json").read_text())}
    chosen = [mutation for mutation in MUTATIONS if word in mutation.name]
    for program in sorted({mutation.program for mutation in chosen}):
        if names := failed_tests(BUILD / "bin" / program):
            raise SystemExit(f"{program} fails without a defect: {names[0]}")
    results = []
    for mutation in chosen:
        # In the build's folder, as bin/ is, so that the program finds the plugins in ../lib.
        with tempfile.TemporaryDirectory(prefix="mutation-", dir=BUILD) as folder:
            results.append(try_mutation(mutation, database, pathlib.Path(folder)))
    print(f"{sum(results)} of {len(results)} mutations noticed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
