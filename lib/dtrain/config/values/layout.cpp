#include "dtrain/config/values/layout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>

#include "dtrain/base/error.h"

namespace dtrain::config {
namespace {

using base::ErrorKind;
using base::fail;

// By Axis.
constexpr std::int64_t LayoutConfig::*kSizes[]{&LayoutConfig::pp, &LayoutConfig::dp,
                                               &LayoutConfig::tp};
static_assert(std::size(kSizes) == kAxes.size());

constexpr std::array<StrategyTraits, 11> kStrategyTraits{{
    {Strategy::single, Axis::dp},
    {Strategy::ddp, Axis::dp},
    {Strategy::zero, Axis::dp, DataAxisKind::zero},
    {Strategy::deepspeed, Axis::dp, DataAxisKind::zero},
    {Strategy::fsdp, Axis::dp, DataAxisKind::fsdp},
    {Strategy::tp, Axis::tp},
    {Strategy::pp, Axis::pp},
    {Strategy::three_axes, std::nullopt, std::nullopt},
    {Strategy::dp, Axis::dp, DataAxisKind::ddp, Strategy::ddp},
    {Strategy::mp, Axis::pp, DataAxisKind::ddp, Strategy::pp},
    {Strategy::automatic, Axis::dp},  // until a layout is chosen
}};

Sharding sharding_of(FsdpSharding sharding) {
  return sharding == FsdpSharding::none      ? Sharding::none
         : sharding == FsdpSharding::grad_op ? Sharding::freed_parameters
                                             : Sharding::parameters;
}

}  // namespace

std::int64_t& size_of(LayoutConfig& layout, Axis axis) {
  return layout.*kSizes[static_cast<std::size_t>(axis)];
}

MeshShape mesh_of(const LayoutConfig& layout) {
  MeshShape shape;
  for (const Axis axis : kAxes) shape[axis] = layout.*kSizes[static_cast<std::size_t>(axis)];
  return shape;
}

const StrategyTraits& strategy_of(const LayoutConfig& layout) {
  const auto* found =
      std::ranges::find(kStrategyTraits, layout.strategy, &StrategyTraits::strategy);
  DTRAIN_CHECK(found != kStrategyTraits.end(), "strategy {}", layout.strategy);
  return *found;
}

DataAxisKind data_axis_of(const LayoutConfig& layout) {
  return strategy_of(layout).data_axis.value_or(layout.data_axis);
}

Strategy strategy_for(DataAxisKind data_axis) {
  return data_axis == DataAxisKind::zero   ? Strategy::zero
         : data_axis == DataAxisKind::fsdp ? Strategy::fsdp
                                           : Strategy::ddp;
}

Sharding sharding_of(const LayoutConfig& layout) {
  const DataAxisKind axis = data_axis_of(layout);
  if (axis == DataAxisKind::ddp) return Sharding::none;
  if (axis == DataAxisKind::fsdp) return sharding_of(layout.fsdp_sharding);
  return layout.zero_stage == 1   ? Sharding::optimizer
         : layout.zero_stage == 2 ? Sharding::gradients
                                  : Sharding::parameters;
}

// A gradient is a nested sum: over a rank's microbatches, the ranks that share a copy, and the
// copies. A single rank adds an odd factor of the terms sequentially and the rest in a binary tree,
// so only the innermost sum may have a number of terms that is not a power of two.
bool matches_single_rank_order(const LayoutConfig& layout, std::int64_t grad_accum) {
  const std::int64_t shards = std::max<std::int64_t>(layout.shard_size, 1);
  const std::int64_t copies = std::max<std::int64_t>(layout.dp, 1) / shards;
  const bool is_sharded = layout.accumulate == Accumulation::sharded;
  std::int64_t summed = 1;
  for (const std::int64_t count :
       {is_sharded ? shards : grad_accum, is_sharded ? grad_accum : shards, copies}) {
    if (summed > 1 && !std::has_single_bit(static_cast<std::uint64_t>(count))) return false;
    summed *= count;
  }
  return true;
}

void require_schedule_fits(const PipelineSetting& setting, const PipelineSize& size,
                           std::string_view microbatches_flag) {
  if (setting.kind != PipelineKind::interleaved) return;
  if (size.stages == 1) {
    fail(ErrorKind::usage,
         "--schedule-pp {} needs several stages, but --pp is 1: use --schedule-pp 1f1b, or raise "
         "--pp",
         setting);
  }
  const std::int64_t below = size.microbatches / size.stages * size.stages;
  if (below == size.microbatches) return;
  const std::string fitting = below == 0 ? fmt::format("{}", size.stages)
                                         : fmt::format("{} or {}", below, below + size.stages);
  fail(
      ErrorKind::usage,
      "--schedule-pp {} needs a multiple of the number of stages (--pp {}) as microbatches, but {} "
      "is {}: use {}, or another schedule",
      setting, size.stages, microbatches_flag, size.microbatches, fitting);
}

void require_layers_fit(const PipelineSetting& setting, std::int64_t stages,
                        const std::vector<std::int64_t>& split, std::int64_t num_layers) {
  const std::int64_t parts = stages * setting.chunks;
  std::string cut = fmt::format("--pp {}", stages);
  if (setting.chunks > 1) cut += fmt::format(" with --schedule-pp {}", setting);
  if (parts > num_layers) {
    fail(ErrorKind::usage,
         "{} cuts the model into {} parts, but --layers {} leaves some of them without a layer: "
         "reduce the parts, or raise --layers",
         cut, parts, num_layers);
  }
  if (split.empty()) return;
  const std::string given = fmt::format("--pp-split {}", fmt::join(split, ","));
  if (static_cast<std::int64_t>(split.size()) != parts) {
    fail(ErrorKind::usage, "{} has {} part{}, but {} needs {}: give the layers of each part", given,
         split.size(), split.size() == 1 ? "" : "s", cut, parts);
  }
  const auto empty = std::find(split.begin(), split.end(), 0);
  if (empty != split.end()) {
    fail(ErrorKind::usage, "{}: part {} has no layer: give it at least 1, or lower --pp {}", given,
         empty - split.begin(), stages);
  }
  const std::int64_t sum = std::accumulate(split.begin(), split.end(), std::int64_t{0});
  if (sum != num_layers) {
    fail(ErrorKind::usage, "{} has {} layers in total, but --layers is {}: change one of them",
         given, sum, num_layers);
  }
}

}  // namespace dtrain::config
