#include "dtrain/config/continued_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/config/input/rivals.h"
#include "dtrain/config/values/layout.h"

namespace dtrain::config {
namespace {

// Lets the sizes of the other axes follow from the ranks.
void forget_all_sizes_but(Axis kept, LayoutConfig& layout) {
  LayoutConfig plain;
  for (const Axis axis : kAxes) {
    if (axis != kept) size_of(layout, axis) = size_of(plain, axis);
  }
}

void keep_data_axis_alone(LayoutConfig& layout) {
  const LayoutConfig plain;
  layout.strategy = strategy_with(data_axis_of(layout));
  forget_all_sizes_but(Axis::dp, layout);
  layout.schedule_pp = plain.schedule_pp;
  layout.pp_split = plain.pp_split;
  layout.tp_vocab = plain.tp_vocab;
  layout.data_axis = plain.data_axis;
}

// Sizes that keep the blocks' and stages' split where it divides the ranks.
void fit_three_axes(LayoutConfig& layout, const LayoutConfig& resolved, std::int64_t num_ranks) {
  MeshShape split = mesh_of(resolved);
  split[Axis::dp] = 1;
  const std::int64_t fixed = split.num_ranks();
  if (fixed == 0 || num_ranks % fixed != 0) return keep_data_axis_alone(layout);
  for (const Axis axis : kAxes) {
    if (axis != Axis::dp) size_of(layout, axis) = split[axis];
  }
}

// Gives way where the run's ranks were others. Returns what to say of it.
std::string fit_layout(LayoutConfig& layout, const SavedRun& saved, std::int64_t num_ranks) {
  layout.nnodes = 0;
  const StrategyMeaning strategy = strategy_of(layout);
  const LayoutConfig& then = saved.resolved.layout;
  const std::int64_t ranks = saved.ranks > 0 ? saved.ranks : mesh_of(then).num_ranks();
  if (strategy.is_local() ? num_ranks == 1 : num_ranks == ranks) return {};
  const LayoutConfig plain;
  const Strategy before = layout.strategy;
  layout.dp = layout.shard_size = layout.local_ranks = 0;
  layout.accumulate = plain.accumulate;
  layout.devices = plain.devices;
  if (!strategy.axis) {
    fit_three_axes(layout, then, num_ranks);
  } else {
    forget_all_sizes_but(Axis::dp, layout);
    layout.pp_split = plain.pp_split;
    if (strategy.is_local()) layout.strategy = *strategy.with_processes;
    if (before == Strategy::single) layout.strategy = Strategy::ddp;
    // Each stage of a pipeline of all ranks needs a level for each of its parts.
    const std::int64_t parts = num_ranks * then.schedule_pp.chunks;
    const bool is_pipeline = strategy.axis == Axis::pp;
    if (is_pipeline && parts > saved.resolved.model.levels) keep_data_axis_alone(layout);
  }
  if (layout.strategy == before) return {};
  return fmt::format("; --strategy {} takes the place of {} for {} rank{}", layout.strategy, before,
                     num_ranks, num_ranks == 1 ? "" : "s");
}

// The global batch decides the numbers, the microbatch their bits; accumulation follows the ranks.
void fit_batch(Config& config, const Loaded& given, const SavedRun& saved, const Launch& launch) {
  const bool has_global = given.gives("batch.global");
  const bool has_microbatch = given.gives("batch.microbatch");
  const bool has_accumulation = given.gives("batch.grad_accum");
  BatchConfig& batch = config.batch;
  const BatchConfig& before = saved.resolved.batch;
  if (!has_global) batch.global = has_microbatch && has_accumulation ? 0 : before.global;
  if (!has_accumulation) batch.grad_accum = 0;
  if (has_microbatch) return;
  const bool is_free = !has_accumulation && fits_ranks(before.microbatch, config, launch);
  batch.microbatch = is_free ? before.microbatch : 0;
}

// What a run made of --lr auto and the like stays, also where it gets more steps.
void keep_rates(TrainConfig& asked, const TrainConfig& resolved) {
  if (!asked.lr) asked.lr = resolved.lr;
  if (!asked.min_lr) asked.min_lr = resolved.min_lr;
  if (!asked.warmup_steps) asked.warmup_steps = resolved.warmup_steps;
}

// Gives up a backend that may not serve these ranks. Returns what to say of it.
std::string fit_backend(Config& config, const Loaded& given, const Launch& launch) {
  Backend& backend = config.machine.backend;
  if (given.gives("machine.backend") || backend == Backend::automatic) return {};
  const Backend before = std::exchange(backend, Backend::automatic);
  if (before == Backend::none || before == Backend::local)
    return {};                                   // of one process: automatic says the same
  const bool is_alone = launch.world_size == 1;  // also where ranks are threads
  const bool is_apart = before == Backend::shm && launch.num_nodes > 1;
  if (is_alone || is_apart) return fmt::format("; --backend auto takes the place of {}", before);
  backend = before;
  return {};
}

// A run may have been on a device that this build knows nothing of.
void check_device(const std::string& path, const Config& config, const Loaded& given,
                  const Launch& launch) {
  const DeviceName& device = config.machine.device;
  const bool is_there = device.is_cpu() || device.kind == "auto" ||
                        std::ranges::count(launch.devices, device.kind) > 0;
  if (is_there || given.gives("machine.device")) return;
  base::fail(
      base::ErrorKind::usage,
      "{} has --device {}, which this build does not have: give another, such as --device cpu",
      path, device);
}

// Resets the settings that concern one start and its machines alone. Weights come from the
// checkpoint. given: of the command that resumes.
void forget_start(Config& config, const CheckpointConfig& given) {
  const CheckpointConfig plain;
  config.run = {};
  config.machine.interface.clear();
  config.checkpoint.resume = plain.resume;
  config.checkpoint.strict_resume = plain.strict_resume;
  config.checkpoint.new_data = plain.new_data;
  if (!given.resume.is_automatic() || given.new_data) {
    config.checkpoint.init_from = plain.init_from;
  }
}

}  // namespace

ContinuedRun continue_run(const CommandLine& command_line, const Loaded& given,
                          const RunSettings& run, const Launch& launch) {
  SavedRun saved = run.saved;
  forget_start(saved.asked, given.config.checkpoint);
  keep_rates(saved.asked.train, saved.resolved.train);
  std::string changed;
  if (given.gives("layout.strategy")) {
    saved.asked.layout = {};
  } else {
    changed = fit_layout(saved.asked.layout, saved, launch.world_size);
  }
  ContinuedRun continued{load(command_line, saved.asked), {}};
  Config& config = continued.loaded.config;
  changed += fit_backend(config, given, launch);
  check_device(run.path, config, given, launch);
  fit_batch(config, given, saved, launch);
  const bool is_unnamed_fork =
      given.config.checkpoint.resume.kind == Resume::Kind::path && given.config.run.dir.empty();
  continued.notice = fmt::format(
      "settings that this command does not give come from {}{}{}", run.path, changed,
      is_unnamed_fork
          ? fmt::format(
                "; this is a new run, which forks it: --run-dir {} --resume auto continues it",
                std::filesystem::path(run.path).parent_path().string())
          : "");
  return continued;
}

}  // namespace dtrain::config
