#include <fmt/format.h>

#include <algorithm>

#include "dtrain/config/input/assign.h"
#include "dtrain/config/values/layout.h"
#include "dtrain/planner/planner.h"

namespace dtrain::planner {
namespace {

using Flags = std::vector<std::pair<std::string, std::string>>;
using config::DataAxisKind;
using config::Strategy;

Flags joined(Flags first, const Flags& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

Flags strategy_flag(Strategy strategy) { return {{"--strategy", std::string(text_of(strategy))}}; }

// One way of sharding state over data-parallel ranks.
struct DataSharding {
  DataAxisKind axis;
  Flags options;

  // Flags of a job with data parallelism only.
  [[nodiscard]] Flags as_only_axis() const {
    return joined(strategy_flag(config::strategy_for(axis)), options);
  }
  // Flags of a job with other axes.
  [[nodiscard]] Flags with_other_axes() const {
    return joined({{"--data-axis", std::string(text_of(axis))}}, options);
  }
};

std::vector<DataSharding> shardings(std::int64_t ranks, const Cluster& cluster) {
  std::vector<DataSharding> all{{DataAxisKind::ddp, {}},
                                {DataAxisKind::zero, {{"--zero-stage", "1"}}},
                                {DataAxisKind::zero, {{"--zero-stage", "2"}}},
                                {DataAxisKind::fsdp, {}}};
  const std::int64_t share = cluster.ranks_per_node;
  if (ranks > share && share > 1) {
    const std::string hybrid(text_of(config::FsdpSharding::hybrid));
    all.push_back({DataAxisKind::fsdp,
                   {{"--fsdp-sharding", hybrid}, {"--shard-size", std::to_string(share)}}});
  }
  return all;
}

// Adds pp x dp x tp meshes, excluding pure data parallelism; flags without microbatches.
void add_meshes(std::vector<Flags>& all, std::int64_t ranks, std::int64_t layers,
                const Cluster& cluster) {
  for (std::int64_t pp = 1; pp <= std::min(ranks, layers); ++pp) {
    if (ranks % pp != 0) continue;
    // Tensor-parallel ranks communicate at every level, so tp stays within a node.
    for (std::int64_t tp = 1; tp <= std::min(ranks / pp, cluster.ranks_per_node); tp *= 2) {
      if (ranks / pp % tp != 0 || (pp == 1 && tp == 1)) continue;
      const std::int64_t dp = ranks / pp / tp;
      if (dp == 1 && (pp == 1 || tp == 1)) {
        all.push_back(strategy_flag(pp == 1 ? Strategy::tp : Strategy::pp));
        continue;
      }
      const Flags mesh =
          joined(strategy_flag(Strategy::three_axes), {{"--pp", std::to_string(pp)},
                                                       {"--dp", std::to_string(dp)},
                                                       {"--tp", std::to_string(tp)}});
      if (dp == 1) {
        all.push_back(mesh);
        continue;
      }
      for (const DataSharding& sharding :
           shardings(dp, {.ranks_per_node = cluster.ranks_per_node / tp})) {
        all.push_back(joined(mesh, sharding.with_other_axes()));
      }
    }
  }
}

std::vector<Flags> strategies(const config::Config& requested, std::int64_t ranks,
                              const Cluster& cluster) {
  if (ranks == 1) return {strategy_flag(Strategy::single)};
  std::vector<Flags> all;
  for (const DataSharding& sharding : shardings(ranks, cluster))
    all.push_back(sharding.as_only_axis());
  add_meshes(all, ranks, requested.model.layers, cluster);
  return all;
}

std::vector<std::int64_t> microbatches(const config::BatchConfig& batch) {
  if (batch.microbatch != 0) return {batch.microbatch};
  std::vector<std::int64_t> sizes;
  for (std::int64_t size = 1; size <= batch.global; size *= 2) {
    if (batch.global % size == 0) sizes.push_back(size);
  }
  return sizes;
}

}  // namespace

std::string Layout::text() const {
  std::string text;
  for (const auto& [flag, value] : flags) {
    text += fmt::format("{}{} {}", text.empty() ? "" : " ", flag, value);
  }
  return text;
}

std::vector<Layout> enumerate_layouts(const config::Config& requested, std::int64_t ranks,
                                      const Cluster& cluster) {
  std::vector<Layout> layouts;
  for (const Flags& flags : strategies(requested, ranks, cluster)) {
    for (const std::int64_t size : microbatches(requested.batch)) {
      layouts.push_back({ranks, joined(flags, {{"--microbatch", std::to_string(size)}})});
    }
  }
  return layouts;
}

config::Config apply_layout(const config::Config& requested, const Layout& layout) {
  config::Config config = requested;
  config.layout = {};
  config.batch.grad_accum = 0;
  for (const auto& [flag, value] : layout.flags) {
    config::assign_text(*config::find_flag(flag), value, flag, config);
  }
  return config;
}

config::Config resolve_with_layout(const config::Config& requested, const Layout& layout,
                                   const Cluster& cluster) {
  const std::int64_t on_node = std::min(layout.ranks, cluster.ranks_per_node);
  config::Launch launch{.world_size = layout.ranks,
                        .num_nodes = (layout.ranks + on_node - 1) / on_node,
                        .local_world_size = on_node,
                        .usable_cores = cluster.cores};
  if (cluster.device != "cpu") {
    launch.devices = {cluster.device};
    launch.num_gpus = on_node;
  }
  return config::resolve(config::Command::train, apply_layout(requested, layout), launch);
}

std::vector<std::int64_t> rank_counts(const config::Config& requested, std::int64_t cores) {
  if (requested.plan.ranks != 0) return {requested.plan.ranks};
  const std::int64_t threads = std::max<std::int64_t>(1, requested.machine.threads);
  std::vector<std::int64_t> all;
  for (std::int64_t ranks = 1; ranks * threads <= cores; ++ranks) {
    if (cores % ranks == 0) all.push_back(ranks);
  }
  if (all.empty()) all.push_back(1);
  return all;
}

}  // namespace dtrain::planner
