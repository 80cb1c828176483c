#include "dtrain/parallel/plan/plan.h"

#include "dtrain/config/layout.h"

namespace dtrain::parallel {
namespace {

using config::LayoutConfig;
using config::Sharding;

// The data plan of a sharding: what it leaves on every rank.
DataPlan sharded(const LayoutConfig& layout, const Sharding sharding) {
  DataPlan plan;
  plan.num_ranks = layout.dp;
  if (sharding == Sharding::none || layout.shard_size == 1) return plan;
  plan.shard_size = layout.shard_size;
  plan.wrap = layout.wrap;
  UnitScheduleOptions& schedule = plan.schedule;
  schedule.reduce_every_microbatch = layout.accumulate == config::Accumulation::sharded;
  if (sharding == Sharding::gradients || sharding == Sharding::optimizer) return plan;
  schedule.reshard =
      sharding == Sharding::parameters ? Reshard::after_use : Reshard::after_backward;
  schedule.backward_prefetch = layout.backward_prefetch;
  schedule.forward_prefetch = layout.forward_prefetch;
  schedule.limit_gathers = layout.limit_gathers;
  schedule.tied_per_use = layout.tied_reshard == config::TiedReshard::per_use;
  return plan;
}

PipelinePlan pipelined(const LayoutConfig& layout) {
  if (layout.pp == 1) return {};
  return {.order = layout.schedule_pp, .split = layout.pp_split.levels};
}

}  // namespace

Plan make_plan(const LayoutConfig& layout) {
  return {.mesh = config::mesh_of(layout),
          .data = sharded(layout, config::sharding_of(layout)),
          .pipeline = pipelined(layout),
          .splits_vocab = layout.tp_vocab && layout.tp > 1};
}

}  // namespace dtrain::parallel
