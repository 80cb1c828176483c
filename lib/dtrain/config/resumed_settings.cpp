#include "dtrain/config/resumed_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/config/input/conflicts.h"
#include "dtrain/config/values/layout.h"

namespace dtrain::config {
namespace {

// Resets the sizes of the other axes, to be derived from the number of ranks.
void reset_sizes_except(Axis kept, LayoutConfig& layout) {
  LayoutConfig plain;
  for (const Axis axis : kAxes) {
    if (axis != kept) size_of(layout, axis) = size_of(plain, axis);
  }
}

void keep_data_axis_alone(LayoutConfig& layout) {
  const LayoutConfig plain;
  layout.strategy = strategy_for(data_axis_of(layout));
  reset_sizes_except(Axis::dp, layout);
  layout.schedule_pp = plain.schedule_pp;
  layout.pp_split = plain.pp_split;
  layout.tp_vocab = plain.tp_vocab;
  layout.data_axis = plain.data_axis;
}

// Keeps the tp and pp sizes if their product divides the ranks; otherwise keeps the data axis alone.
void fit_three_axes(LayoutConfig& layout, const LayoutConfig& resolved, std::int64_t num_ranks) {
  MeshShape split = mesh_of(resolved);
  split[Axis::dp] = 1;
  const std::int64_t fixed = split.num_ranks();
  if (fixed == 0 || num_ranks % fixed != 0) return keep_data_axis_alone(layout);
  for (const Axis axis : kAxes) {
    if (axis != Axis::dp) size_of(layout, axis) = split[axis];
  }
}

// Replaces a layout that does not fit the number of ranks. Returns the text for the notice, which is
// empty if the strategy stays.
std::string fit_layout(LayoutConfig& layout, const SavedRun& saved, std::int64_t num_ranks) {
  layout.nnodes = 0;
  const StrategyTraits strategy = strategy_of(layout);
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
    reset_sizes_except(Axis::dp, layout);
    layout.pp_split = plain.pp_split;
    if (strategy.is_local()) layout.strategy = *strategy.with_processes;
    if (before == Strategy::single) layout.strategy = Strategy::ddp;
    // If all ranks form a pipeline, each stage needs a layer for each of its chunks.
    const std::int64_t parts = num_ranks * then.schedule_pp.chunks;
    const bool is_pipeline = strategy.axis == Axis::pp;
    if (is_pipeline && parts > saved.resolved.model.layers) keep_data_axis_alone(layout);
  }
  if (layout.strategy == before) return {};
  return fmt::format("; --strategy {} replaces {} for {} rank{}", layout.strategy, before,
                     num_ranks, num_ranks == 1 ? "" : "s");
}

// Keeps the run's global batch, which affects the results, and its microbatch, which affects their
// rounding, if they fit. The accumulation is derived from the number of ranks.
void inherit_batch(Config& config, const LoadedSettings& given, const SavedRun& saved,
                   const Launch& launch) {
  const bool has_global = given.gives("batch.global");
  const bool has_microbatch = given.gives("batch.microbatch");
  const bool has_accumulation = given.gives("batch.grad_accum");
  BatchConfig& batch = config.batch;
  const BatchConfig& before = saved.resolved.batch;
  if (!has_global) batch.global = has_microbatch && has_accumulation ? 0 : before.global;
  if (!has_accumulation) batch.grad_accum = 0;
  if (has_microbatch) return;
  const bool is_free = !has_accumulation && microbatch_fits(before.microbatch, config, launch);
  batch.microbatch = is_free ? before.microbatch : 0;
}

// True if --min-lr auto resolves to the run's final rate, which an older dtrain may have rounded
// differently.
bool derives_min_lr(const TrainConfig& resolved) {
  return resolved.lr && resolved.min_lr == default_min_lr(*resolved.lr);
}

// Keeps the values that --lr auto and the like resolved to, even if the run gets more steps.
// --min-lr auto depends on no steps: it stays automatic, so that it follows another --lr, now or at
// a later resume.
void keep_rates(TrainConfig& requested, const TrainConfig& resolved, const LoadedSettings& given) {
  if (!requested.lr) requested.lr = resolved.lr;
  const bool stays_automatic = given.gives("train.lr") || derives_min_lr(resolved);
  if (!requested.min_lr && !stays_automatic) requested.min_lr = resolved.min_lr;
  if (!requested.warmup_steps) requested.warmup_steps = resolved.warmup_steps;
}

// Replaces a backend that cannot connect these ranks. Returns the text for the notice, which is empty
// if the backend stays.
std::string fit_backend(Config& config, const LoadedSettings& given, const Launch& launch) {
  Backend& backend = config.machine.backend;
  if (given.gives("machine.backend") || backend == Backend::automatic) return {};
  const Backend before = std::exchange(backend, Backend::automatic);
  if (before == Backend::none || before == Backend::local)
    return {};                                   // automatic becomes the same in one process
  const bool is_alone = launch.world_size == 1;  // also if ranks are threads
  const bool is_apart = before == Backend::shm && launch.num_nodes > 1;
  if (is_alone || is_apart) return fmt::format("; --backend auto replaces {}", before);
  backend = before;
  return {};
}

// Rejects a device of the run that this build does not support.
void require_device(const std::string& path, const Config& config, const LoadedSettings& given,
                    const Launch& launch) {
  const DeviceName& device = config.machine.device;
  const bool path_exists = device.is_cpu() || device.kind == "auto" ||
                           std::ranges::count(launch.devices, device.kind) > 0;
  if (path_exists || given.gives("machine.device")) return;
  base::fail(
      base::ErrorKind::usage,
      "{} has --device {}, which this build does not support: give another, such as --device cpu",
      path, device);
}

// Resets settings that apply to one start only. The weights come from the checkpoint. given: the
// settings of the command that resumes.
void reset_start_settings(Config& config, const CheckpointConfig& given) {
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

ResumedSettings resume_settings(const CommandLine& command_line, const LoadedSettings& given,
                                const InheritedRun& run, const Launch& launch) {
  SavedRun saved = run.saved;
  reset_start_settings(saved.requested, given.config.checkpoint);
  keep_rates(saved.requested.train, saved.resolved.train, given);
  saved.requested.machine.kernels = kernels_of(saved);
  std::string changed;
  if (given.gives("layout.strategy")) {
    saved.requested.layout = {};
  } else {
    changed = fit_layout(saved.requested.layout, saved, launch.world_size);
  }
  ResumedSettings continued{load(command_line, saved.requested), {}};
  Config& config = continued.loaded.config;
  changed += fit_backend(config, given, launch);
  require_device(run.path, config, given, launch);
  inherit_batch(config, given, saved, launch);
  const bool is_unnamed_fork =
      given.config.checkpoint.resume.kind == Resume::Kind::path && given.config.run.dir.empty();
  continued.notice = fmt::format(
      "settings that this command omits come from {}{}{}", run.path, changed,
      is_unnamed_fork
          ? fmt::format(
                "; this forks that run into a new one: to continue it, give --run-dir {} --resume "
                "auto",
                std::filesystem::path(run.path).parent_path().string())
          : "");
  return continued;
}

}  // namespace dtrain::config
