#include "dtrain/parallel/plan/group_plans.h"

#include <algorithm>
#include <map>
#include <span>

#include "dtrain/config/layout.h"
#include "dtrain/parallel/plan/memory_plan.h"

namespace dtrain::parallel {
namespace {

// The host of each rank: all nodes have equally many.
std::vector<std::int64_t> hosts_of(std::span<const std::int64_t> ranks,
                                   const config::LayoutConfig& layout) {
  const std::int64_t nodes = std::max<std::int64_t>(1, layout.nnodes);
  const std::int64_t per_host =
      std::max<std::int64_t>(1, config::mesh_of(layout).num_ranks() / nodes);
  std::vector<std::int64_t> hosts;
  for (const std::int64_t rank : ranks) hosts.push_back(rank / per_host);
  return hosts;
}

comm::PlannedGroup with_ranks(comm::PlannedGroup group, std::span<const std::int64_t> ranks,
                              const config::Config& config) {
  group.load.size = std::ssize(ranks);
  group.is_ordered = config.machine.reduction != config::Reduction::fast;
  group.host_of_rank = hosts_of(ranks, config.layout);
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
    if (shards() > 1) return {};  // its cuts serve
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
    return param::bytes_of(arenas_.largest_trained_unit(), options_.precision.master);
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

}  // namespace

comm::PlannedGroup control_plan(const config::Config& config, bool saves) {
  const auto ranks = comm::ranks_below(config::mesh_of(config.layout).num_ranks());
  return with_ranks({.exchanges = saves}, ranks, config);
}

std::vector<comm::PlannedGroup> group_plans(const config::Config& config, const model::Model& model,
                                            const EngineOptions& options) {
  const mesh::DeviceMesh mesh(config::mesh_of(config.layout));
  const Loads loads(config, model, options);
  std::vector<comm::PlannedGroup> groups{control_plan(config, !config.checkpoint.every.is_never())};
  for (const mesh::GroupKind& kind : mesh::group_kinds(mesh, axis_cuts(config, options))) {
    if (kind.is_axis) continue;
    groups.push_back(with_ranks(loads.of(kind), kind.lines.front(), config));
  }
  return groups;
}

}  // namespace dtrain::parallel
