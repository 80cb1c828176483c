#include "dtrain/parallel/plan/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/checkpoint/snapshot.h"
#include "dtrain/comm/create_world.h"
#include "dtrain/config/layout.h"
#include "dtrain/data/loader.h"
#include "dtrain/metrics/format.h"
#include "dtrain/model/registry.h"
#include "dtrain/parallel/engine/step_engine.h"

namespace dtrain::parallel {
namespace {

using metrics::format_bytes;

// A step's load on a mesh's groups. Gradients and parameters lie in the world's memory, except for
// copies in another dtype.
std::vector<comm::GroupLoad> group_loads(const config::Config& config, const model::Model& model,
                                         const EngineOptions& options) {
  const config::LayoutConfig& layout = config.layout;
  const std::int64_t shards = options.data.shard_size;
  const param::ArenaLayout arenas = engine_layout(model, options);
  const std::int64_t unit = param::bytes_of(arenas.largest_unit(), options.precision.master);
  const std::int64_t gradients = param::Arena::bytes(arenas, options.precision.master);
  const bool sends_copies = options.precision.reduce != options.precision.master ||
                            (shards > 1 && options.precision.compute != options.precision.master) ||
                            (shards > 1 && options.offloads_masters());
  const std::int64_t activations = param::bytes_of(
      config.batch.microbatch * config.data.seq_len * model.width, options.precision.master);
  const bool is_cut = shards > 1 && shards < layout.dp;  // into shards and replicas
  const std::int64_t at_data = shards == 1 ? gradients : is_cut ? 0 : unit;
  const bool has_chunks = options.stage.chunk_begins.size() > 1;
  const bool sends_on = has_chunks || !model.gives_losses;
  const bool sends_back = has_chunks || !model.takes_tokens;
  const comm::GroupLoad split{.reduced = activations, .foreign = activations};
  std::map<mesh::Axis, comm::GroupLoad> of_axis{
      {mesh::Axis::pp, {.reduced = unit, .peers = sends_on ? 1 : 0}},
      {mesh::Axis::dp, {.reduced = at_data, .foreign = sends_copies ? at_data : 0}},
      {mesh::Axis::tp, split}};
  std::map<mesh::GroupUse, comm::GroupLoad> of_cut{
      {mesh::GroupUse::pp_gradients, {.peers = sends_back ? 1 : 0}},
      {mesh::GroupUse::shards, {.reduced = unit, .foreign = sends_copies ? unit : 0}},
      {mesh::GroupUse::replicas, {.reduced = gradients / shards}},
      {mesh::GroupUse::tensor, split},
      {mesh::GroupUse::stages, {.reduced = unit}}};
  const mesh::DeviceMesh mesh(config::mesh_of(layout));
  std::vector<comm::GroupLoad> loads{{.size = mesh.world_size()}};  // World::control()
  for (const mesh::GroupKind& kind : mesh::group_kinds(mesh, axis_cuts(config, options))) {
    if (kind.is_axis) continue;
    loads.push_back(kind.use == mesh::GroupUse::axis ? of_axis[kind.axis] : of_cut[kind.use]);
    loads.back().size = std::ssize(kind.lines.front());
  }
  return loads;
}

// The levels of each chunk.
std::vector<model::BlockRange> runs_of_levels(const model::Model& model, const StagePlan& stage) {
  const model::BlockRange all = model.levels();
  std::vector<model::BlockRange> runs;
  for (const BlockId begin : stage.chunk_begins) {
    if (!runs.empty()) runs.back().end = begin;
    runs.push_back({std::max(begin, all.begin), all.end});
  }
  return runs;
}

// From no extra FLOPs to the most: some levels alone, in eighths; all; all in ever larger groups.
std::vector<RecomputePlan> cheapest_first(std::span<const model::BlockRange> runs) {
  std::int64_t levels = 0;
  for (const model::BlockRange& run : runs) levels += run.size();
  std::vector<RecomputePlan> plans;
  for (std::int64_t eighth = 0; eighth <= 8; ++eighth) {
    RecomputePlan plan = recompute_lowest_levels(runs, levels * eighth / 8);
    if (plans.empty() || !(plan == plans.back())) plans.push_back(std::move(plan));
  }
  for (std::int64_t size = 2; size <= levels; size *= 2) {
    plans.push_back(recompute_in_groups(runs, size));
  }
  return plans;
}

// The plans that the setting allows, the cheapest first.
std::vector<RecomputePlan> candidates(const config::RecomputeSetting& setting,
                                      std::span<const model::BlockRange> runs, std::int64_t limit) {
  using Kind = config::RecomputeSetting::Kind;
  switch (setting.kind) {
    case Kind::none:
    case Kind::gates:  // within the levels
      break;
    case Kind::level:
      return {recompute_in_groups(runs, 1)};
    case Kind::every:
      return {recompute_in_groups(runs, setting.group_size)};
    case Kind::automatic:
      if (limit > 0) return cheapest_first(runs);
  }
  return {RecomputePlan{}};
}

}  // namespace

mesh::AxisCuts axis_cuts(const config::Config& config, const EngineOptions& options) {
  return {.shard_size = options.data.shard_size,
          .tensor = model::tensor_subgroups(config.model, config.layout.tp),
          .stages = options.stage.holders.values()};
}

MemoryPlan plan_memory(const config::Config& config, const model::Model& model,
                       const EngineOptions& options) {
  MemoryPlan memory = StepEngine::memory(model, options,
                                         {.sequences = config.batch.microbatch,
                                          .length = config.data.seq_len,
                                          .dtype = options.precision.compute});
  // Ranks that are threads hold 16 KiB for a group together, of which none is predicted.
  const bool is_on_device = !config.machine.device.is_cpu();
  std::int64_t& transports = is_on_device ? memory.host : memory.buffers;
  for (const comm::GroupLoad& load : group_loads(config, model, options)) {
    transports += comm::group_memory(text_of(config.machine.backend), load);
  }
  memory.buffers += data::Loader::bytes(
      {.microbatch = config.batch.microbatch, .grad_accum = config.batch.grad_accum},
      config.data.seq_len);
  // A device's state is copied to the host whether training goes on meanwhile or not.
  if (config.checkpoint.every.is_never() && !is_on_device) return memory;
  std::int64_t& copy = is_on_device ? memory.host : memory.checkpoint;
  copy += memory.carried +
          checkpoint::Staging::bytes(memory.state, config.layout.dp / options.data.shard_size);
  return memory;
}

RecomputePlan choose_recompute(const config::Config& config, const model::Model& model,
                               EngineOptions options) {
  const config::MachineConfig& machine = config.machine;
  const std::int64_t limit = machine.memory_limit.count;
  const auto predicted = [&](const RecomputePlan& plan) {
    options.recompute = plan;
    return plan_memory(config, model, options).total();
  };
  const std::vector<model::BlockRange> runs = runs_of_levels(model, options.stage);
  const std::vector<RecomputePlan> allowed = candidates(machine.recompute, runs, limit);
  if (limit == 0) return allowed.front();
  for (const RecomputePlan& plan : allowed) {
    if (predicted(plan) <= limit) return plan;
  }
  // A device itself says what is too much.
  if (!machine.device.is_cpu()) return *std::ranges::min_element(allowed, {}, predicted);
  std::int64_t least = predicted(allowed.front());
  for (const RecomputePlan& plan : cheapest_first(runs)) least = std::min(least, predicted(plan));
  const std::string others =
      machine.recompute.kind == config::RecomputeSetting::Kind::automatic
          ? std::string()
          : fmt::format("{} per rank are predicted, ", format_bytes(predicted(allowed.front())));
  base::fail(base::ErrorKind::usage,
             "--memory-limit {} cannot be met with --recompute {}: {}at least {} with --recompute "
             "auto; raise the limit, lower --microbatch or --seq-len, or shard over more ranks "
             "(--strategy fsdp)",
             machine.memory_limit, machine.recompute, others, format_bytes(least));
}

}  // namespace dtrain::parallel
