#include "dtrain/config/layout.h"

#include <algorithm>
#include <array>
#include <bit>

#include "dtrain/base/error.h"

namespace dtrain::config {
namespace {

// By Axis.
constexpr std::int64_t LayoutConfig::*kSizes[]{&LayoutConfig::pp, &LayoutConfig::dp,
                                               &LayoutConfig::tp};
static_assert(std::size(kSizes) == kAxes.size());

constexpr std::array<StrategyMeaning, 11> kStrategyMeanings{{
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
    {Strategy::automatic, Axis::dp},  // until it is chosen
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

const StrategyMeaning& strategy_of(const LayoutConfig& layout) {
  const auto* found =
      std::ranges::find(kStrategyMeanings, layout.strategy, &StrategyMeaning::strategy);
  DTRAIN_CHECK(found != kStrategyMeanings.end(), "strategy {}", layout.strategy);
  return *found;
}

DataAxisKind data_axis_of(const LayoutConfig& layout) {
  return strategy_of(layout).data_axis.value_or(layout.data_axis);
}

Strategy strategy_with(DataAxisKind data_axis) {
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

// Sums of sums: over a rank's microbatches, the ranks that share one copy, and the copies. One rank
// adds groups of an odd number left to right and then in a binary tree, so only a tree of whole
// sums can follow a first sum of any length.
bool keeps_order_of_one_rank(const LayoutConfig& layout, std::int64_t grad_accum) {
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

}  // namespace dtrain::config
