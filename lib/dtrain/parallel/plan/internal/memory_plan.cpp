#include "dtrain/parallel/plan/internal/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/checkpoint/model_file.h"
#include "dtrain/checkpoint/state.h"
#include "dtrain/comm/create_world.h"
#include "dtrain/config/values/layout.h"
#include "dtrain/data/loader.h"
#include "dtrain/metrics/format.h"
#include "dtrain/model/family.h"
#include "dtrain/parallel/engine/step_engine.h"
#include "dtrain/parallel/engine/whole_model.h"
#include "dtrain/parallel/plan/fitting.h"

namespace dtrain::parallel {
namespace {

using metrics::format_bytes;

comm::PlannedGroup with_ranks(comm::PlannedGroup group, std::span<const std::int64_t> ranks,
                              const config::Config& config) {
  group.load.size = std::ssize(ranks);
  group.is_ordered = config.machine.reduction != config::Reduction::fast;
  // All nodes have equally many ranks.
  const std::int64_t nodes = std::max<std::int64_t>(1, config.layout.nnodes);
  const std::int64_t per_host =
      std::max<std::int64_t>(1, config::mesh_of(config.layout).num_ranks() / nodes);
  group.host_of_rank.clear();
  for (const std::int64_t rank : ranks) group.host_of_rank.push_back(rank / per_host);
  return group;
}

/// A step's load on groups. Gradients and parameters are in the world's memory, except for copies
/// in another dtype.
class Loads {
 public:
  Loads(const config::Config& config, const model::Model& model, const EngineOptions& options)
      : config_(config), model_(model), options_(options), arenas_(engine_layout(model, options)) {}

  [[nodiscard]] comm::PlannedGroup of(const mesh::GroupKind& kind) const {
    using mesh::GroupUse;
    switch (kind.use) {
      case GroupUse::axis:
        return kind.axis == mesh::Axis::pp   ? of_stages()
               : kind.axis == mesh::Axis::dp ? of_data_axis()
                                             : of_tensor_axis();
      case GroupUse::pp_gradients:
        return {.load = {.peers = has_chunks() || !model_.takes_tokens ? 1 : 0}};
      case GroupUse::shards:
        return of_shards();
      case GroupUse::replicas:
        return {.load = {.reduced = gradients() / shards()}};
      case GroupUse::tensor:
        return of_tensor_axis();
      case GroupUse::stages:
        return {.load = {.reduced = reduced_unit()}};
      default:
        return {};
    }
  }

 private:
  [[nodiscard]] comm::PlannedGroup of_stages() const {
    return {
        .load = {.reduced = reduced_unit(), .peers = has_chunks() || !model_.gives_losses ? 1 : 0}};
  }

  [[nodiscard]] comm::PlannedGroup of_data_axis() const {
    if (shards() == config_.layout.dp && shards() > 1) return of_shards();
    if (shards() > 1) return {};  // uses its subgroups
    const std::int64_t bytes = gradients();
    return {.load = {.reduced = bytes, .foreign = sends_copies() ? bytes : 0},
            .reduces_16_bits = reduces_16_bits()};
  }

  [[nodiscard]] comm::PlannedGroup of_shards() const {
    return {.load = {.reduced = reduced_unit(), .foreign = sends_copies() ? unit() : 0},
            .gathered = unit(),
            .reduces_16_bits = reduces_16_bits()};
  }

  [[nodiscard]] comm::PlannedGroup of_tensor_axis() const {
    const std::int64_t activations = param::bytes_of(
        config_.batch.microbatch * config_.data.seq_len * model_.width, options_.precision.master);
    return {.load = {.reduced = activations, .foreign = activations}};
  }

  [[nodiscard]] std::int64_t shards() const { return options_.data.shard_size; }
  [[nodiscard]] std::int64_t unit() const {
    return param::bytes_of(arenas_.largest_unit(), options_.precision.master);
  }
  [[nodiscard]] std::int64_t reduced_unit() const {
    return param::bytes_of(arenas_.largest_unit(param::Elements::trained),
                           options_.precision.master);
  }
  [[nodiscard]] std::int64_t gradients() const {
    return param::Arena::bytes_of_trained(arenas_, options_.precision.master);
  }
  [[nodiscard]] bool has_chunks() const { return options_.stage.chunk_begins.size() > 1; }
  [[nodiscard]] bool sends_copies() const {
    const Precision& precision = options_.precision;
    const bool is_sharded = shards() > 1;
    return precision.reduce != precision.master ||
           (is_sharded && precision.compute != precision.master) ||
           (is_sharded && options_.offloads_masters());
  }
  [[nodiscard]] bool reduces_16_bits() const {
    const at::ScalarType dtype = options_.precision.reduce;
    return dtype == at::kBFloat16 || dtype == at::kHalf;
  }

  const config::Config& config_;
  const model::Model& model_;
  const EngineOptions& options_;
  param::ArenaLayout arenas_;
};

// World::control(). saves: checkpoint parts are gathered through it.
comm::PlannedGroup control_plan(const config::Config& config, bool saves) {
  const auto ranks = comm::ranks_below(config::mesh_of(config.layout).num_ranks());
  return with_ranks({.exchanges = saves}, ranks, config);
}

// All multi-rank groups: World::control() first, then the mesh's. If groups of one kind differ,
// uses the first one as its first rank sees it.
std::vector<comm::PlannedGroup> group_plans(const config::Config& config, const model::Model& model,
                                            const EngineOptions& options) {
  const mesh::DeviceMesh mesh(config::mesh_of(config.layout));
  const Loads loads(config, model, options);
  std::vector<comm::PlannedGroup> groups{control_plan(config, !config.checkpoint.every.is_never())};
  for (const mesh::GroupKind& kind : mesh::group_kinds(mesh, mesh_subgroups(config, options))) {
    if (kind.is_axis) continue;
    groups.push_back(with_ranks(loads.of(kind), kind.groups.front(), config));
  }
  return groups;
}

// Returns the memory of the final save: the last checkpoint, if it is the only one, and the model.
std::int64_t final_save(const config::Config& config, const model::Model& model,
                        const EngineOptions& options) {
  const auto control = [&](bool saves) {
    return comm::group_memory(text_of(config.machine.backend), control_plan(config, saves));
  };
  const config::Interval& every = config.checkpoint.every;
  const bool saves_last = every.at_the_end && every.is_never();
  const at::ScalarType dtype = options.precision.master;
  const bool is_on_device = !config.machine.device.is_cpu();  // the host holds the writer's copy
  return (saves_last ? control(true) - control(false) : 0) +
         WholeModel::visit_bytes(model, engine_layout(model, options), dtype) +
         (is_on_device ? 0 : checkpoint::ModelFileWriter::write_bytes(model.parameters, dtype));
}

// The fraction of its parameters' state that a rank saves: replicas save equal parts.
double saved_share(const config::LayoutConfig& layout, const model::Model& model,
                   const EngineOptions& options) {
  const param::ArenaLayout arenas = engine_layout(model, options);
  const double replicas = static_cast<double>(layout.dp / options.data.shard_size);
  const auto moments = static_cast<double>(optim::values_per_element(options.optimizer));
  double held = 0;  // elements, each with its moments
  double saved = 0;
  for (const param::ParameterId id : arenas.parameters()) {
    const double elements =
        static_cast<double>(arenas.range(id).size()) / (arenas.is_frozen(id) ? 1 + moments : 1);
    const ParameterHolders& holders = options.stage.holders;
    const double stages = holders.empty() ? 1 : static_cast<double>(holders[id].size());
    const double tensor_ranks = model.parameters[id].cut ? 1 : static_cast<double>(layout.tp);
    held += elements;
    saved += elements / (stages * tensor_ranks * replicas);
  }
  return held == 0 ? 1 : saved / held;
}

// Returns the layers of each chunk.
std::vector<model::BlockRange> levels_by_chunk(const model::Model& model, const StagePlan& stage) {
  const model::BlockRange all = model.layers();
  std::vector<model::BlockRange> runs;
  for (const BlockId begin : stage.chunk_begins) {
    if (!runs.empty()) runs.back().end = begin;
    runs.push_back({std::max(begin, all.begin), all.end});
  }
  return runs;
}

// Returns plans in order of extra FLOPs: some layers individually, in eighths; all; all in growing
// groups.
std::vector<RecomputePlan> by_extra_flops(std::span<const model::BlockRange> runs) {
  std::int64_t layers = 0;
  for (const model::BlockRange& run : runs) layers += run.size();
  std::vector<RecomputePlan> plans;
  for (std::int64_t eighth = 0; eighth <= 8; ++eighth) {
    RecomputePlan plan = recompute_lowest_layers(runs, layers * eighth / 8);
    if (plans.empty() || !(plan == plans.back())) plans.push_back(std::move(plan));
  }
  for (std::int64_t size = 2; size <= layers; size *= 2) {
    plans.push_back(recompute_in_groups(runs, size));
  }
  return plans;
}

// Returns the plans that the setting allows, cheapest first.
std::vector<RecomputePlan> recompute_plans(const config::RecomputeSetting& setting,
                                           std::span<const model::BlockRange> runs,
                                           std::int64_t limit) {
  using Kind = config::RecomputeSetting::Kind;
  switch (setting.kind) {
    case Kind::none:
    case Kind::gates:  // within the layers
      break;
    case Kind::level:
      return {recompute_in_groups(runs, 1)};
    case Kind::every:
      return {recompute_in_groups(runs, setting.group_size)};
    case Kind::automatic:
      if (limit > 0) return by_extra_flops(runs);
  }
  return {RecomputePlan{}};
}

}  // namespace

mesh::MeshSubgroups mesh_subgroups(const config::Config& config, const EngineOptions& options) {
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
  // The 16 KiB that ranks as threads share per group are not predicted.
  const bool is_on_device = !config.machine.device.is_cpu();
  std::int64_t& transports = is_on_device ? memory.host : memory.buffers;
  for (const comm::PlannedGroup& group : group_plans(config, model, options)) {
    transports += comm::group_memory(text_of(config.machine.backend), group);
  }
  memory.buffers += data::Loader::bytes({.microbatch = config.batch.microbatch,
                                         .assignment = {.grad_accum = options.grad_accum_steps}},
                                        config.data.seq_len);
  memory.final_save = final_save(config, model, options);
  // A device's state is always copied to the host, even by synchronous saves.
  if (config.checkpoint.every.is_never() && !is_on_device) return memory;
  std::int64_t& copy = is_on_device ? memory.host : memory.checkpoint;
  copy += memory.residuals + checkpoint::StagingBuffer::bytes(
                                 memory.state, saved_share(config.layout, model, options));
  return memory;
}

RecomputePlan choose_recompute(const config::Config& config, const model::Model& model,
                               EngineOptions options) {
  const config::MachineConfig& machine = config.machine;
  const std::int64_t limit = machine.memory_limit.count;
  const auto memory_with = [&](const RecomputePlan& plan) {
    options.recompute = plan;
    return plan_memory(config, model, options);
  };
  const auto predicted = [&](const RecomputePlan& plan) { return memory_with(plan).peak(); };
  const std::vector<model::BlockRange> runs = levels_by_chunk(model, options.stage);
  const std::vector<RecomputePlan> allowed = recompute_plans(machine.recompute, runs, limit);
  if (limit == 0) return allowed.front();
  for (const RecomputePlan& plan : allowed) {
    if (predicted(plan) <= limit) return plan;
  }
  // On a device the allocator enforces the limit.
  if (!machine.device.is_cpu()) return *std::ranges::min_element(allowed, {}, predicted);
  const MemoryPlan chosen = memory_with(*std::ranges::min_element(allowed, {}, predicted));
  std::int64_t least = predicted(allowed.front());
  for (const RecomputePlan& plan : by_extra_flops(runs)) least = std::min(least, predicted(plan));
  const bool is_automatic = machine.recompute.kind == config::RecomputeSetting::Kind::automatic;
  const std::string others =
      is_automatic ? fmt::format("at least {} per rank are predicted", format_bytes(least))
                   : fmt::format("{} per rank are predicted, at least {} with --recompute auto",
                                 format_bytes(chosen.peak()), format_bytes(least));
  throw LimitExceeded(fmt::format("--memory-limit {} cannot be met with --recompute {}: {}; {}",
                                  machine.memory_limit, machine.recompute, others,
                                  largest_part(chosen)));
}

}  // namespace dtrain::parallel
