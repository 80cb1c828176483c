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

// One of the ways in which ranks that see different data hold state.
struct Sharing {
  DataAxisKind axis;
  Flags options;

  // Of a job whose ranks all lie on dp.
  [[nodiscard]] Flags alone() const {
    return joined(strategy_flag(config::strategy_for(axis)), options);
  }
  // With other axes beside it.
  [[nodiscard]] Flags among_axes() const {
    return joined({{"--data-axis", std::string(text_of(axis))}}, options);
  }
};

std::vector<Sharing> sharings(std::int64_t ranks, const Site& site) {
  std::vector<Sharing> all{{DataAxisKind::ddp, {}},
                           {DataAxisKind::zero, {{"--zero-stage", "1"}}},
                           {DataAxisKind::zero, {{"--zero-stage", "2"}}},
                           {DataAxisKind::fsdp, {}}};
  const std::int64_t share = site.ranks_per_node;
  if (ranks > share && share > 1) {
    const std::string hybrid(text_of(config::FsdpSharding::hybrid));
    all.push_back({DataAxisKind::fsdp,
                   {{"--fsdp-sharding", hybrid}, {"--shard-size", std::to_string(share)}}});
  }
  return all;
}

// pp x dp x tp, with at least two ranks on more axes than dp; flags without microbatches.
void add_meshes(std::vector<Flags>& all, std::int64_t ranks, std::int64_t layers,
                const Site& site) {
  for (std::int64_t pp = 1; pp <= std::min(ranks, layers); ++pp) {
    if (ranks % pp != 0) continue;
    // Ranks of a tensor axis communicate in every layer: within a machine alone.
    for (std::int64_t tp = 1; tp <= std::min(ranks / pp, site.ranks_per_node); tp *= 2) {
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
      for (const Sharing& sharing : sharings(dp, {.ranks_per_node = site.ranks_per_node / tp})) {
        all.push_back(joined(mesh, sharing.among_axes()));
      }
    }
  }
}

std::vector<Flags> strategies(const config::Config& asked, std::int64_t ranks, const Site& site) {
  if (ranks == 1) return {strategy_flag(Strategy::single)};
  std::vector<Flags> all;
  for (const Sharing& sharing : sharings(ranks, site)) all.push_back(sharing.alone());
  add_meshes(all, ranks, asked.model.layers, site);
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

std::vector<Layout> layouts_of(const config::Config& asked, std::int64_t ranks, const Site& site) {
  std::vector<Layout> layouts;
  for (const Flags& flags : strategies(asked, ranks, site)) {
    for (const std::int64_t size : microbatches(asked.batch)) {
      layouts.push_back({ranks, joined(flags, {{"--microbatch", std::to_string(size)}})});
    }
  }
  return layouts;
}

config::Config given_layout(const config::Config& asked, const Layout& layout) {
  config::Config config = asked;
  config.layout = {};
  config.batch.grad_accum = 0;
  for (const auto& [flag, value] : layout.flags) {
    config::assign_text(*config::find_flag(flag), value, flag, config);
  }
  return config;
}

config::Config with_layout(const config::Config& asked, const Layout& layout, const Site& site) {
  const std::int64_t on_node = std::min(layout.ranks, site.ranks_per_node);
  config::Launch launch{.world_size = layout.ranks,
                        .num_nodes = (layout.ranks + on_node - 1) / on_node,
                        .local_world_size = on_node,
                        .usable_cores = site.cores};
  if (site.device != "cpu") {
    launch.devices = {site.device};
    launch.num_gpus = on_node;
  }
  return config::resolve(config::Command::train, given_layout(asked, layout), launch);
}

std::vector<std::int64_t> ranks_to_plan(const config::Config& asked, std::int64_t cores) {
  if (asked.plan.ranks != 0) return {asked.plan.ranks};
  const std::int64_t threads = std::max<std::int64_t>(1, asked.machine.threads);
  std::vector<std::int64_t> all;
  for (std::int64_t ranks = 1; ranks * threads <= cores; ++ranks) {
    if (cores % ranks == 0) all.push_back(ranks);
  }
  if (all.empty()) all.push_back(1);
  return all;
}

}  // namespace dtrain::planner
