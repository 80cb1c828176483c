#include "dtrain/parallel/data/shard_reducer.h"

#include <algorithm>
#include <map>

#include "dtrain/base/check.h"
#include "dtrain/comm/tree_order.h"

namespace dtrain::parallel {
namespace {

// The place of sum `index` of `count`: in the tree over microbatches, else left to right.
comm::TreeStep step_of(std::int64_t index, std::int64_t count, const ReducerOptions& options) {
  const bool in_tree_order =
      options.reduction == comm::Reduction::ordered && count == options.num_microbatches;
  if (in_tree_order) return comm::tree_step(index, count);
  return {.starts_slot = index == 0, .merges = 0};
}

// Partial sums held at once, the one that arrives included.
std::int64_t levels_for(std::int64_t count, const ReducerOptions& options) {
  std::int64_t depth = 0;
  std::int64_t levels = 0;
  for (std::int64_t index = 0; index < count; ++index) {
    levels = std::max(levels, depth + 1);
    const comm::TreeStep step = step_of(index, count, options);
    depth += (step.starts_slot ? 1 : 0) - step.merges;
  }
  return levels;
}

}  // namespace

ShardReducer::ShardReducer(const param::ArenaLayout& layout, const mesh::MeshGroups& groups,
                           const param::ArenaAllocator& allocate, const ReducerOptions& options,
                           const UnitSchedule& schedule)
    : layout_(layout),
      shard_(groups.shards().rank()),
      options_(options),
      reductions_(groups, options.reduce_dtype) {
  for (std::int64_t unit = 0; unit < layout.num_units(); ++unit) {
    units_.push_back({.buffer = std::make_unique<UnitBuffer>(layout, unit, options.dtype, allocate),
                      .has_gradient = std::vector<bool>(layout.parameters_of(unit).size()),
                      .num_sums = schedule.count(UnitEventKind::reduce, unit)});
  }
  for (std::int64_t level = 0; level < num_levels(schedule, options); ++level) {
    sums_.push_back(param::Arena::of_shard(layout, shard_, options.dtype, allocate));
  }
}

std::int64_t ShardReducer::num_levels(const UnitSchedule& schedule, const ReducerOptions& options) {
  std::map<std::int64_t, std::int64_t> sums;  // by unit
  schedule.for_each([&](const UnitEvent& event) {
    if (event.kind == UnitEventKind::reduce) ++sums[event.unit];
  });
  std::int64_t levels = 1;
  for (const auto& [unit, count] : sums) levels = std::max(levels, levels_for(count, options));
  return levels;
}

void ShardReducer::begin_microbatch(std::int64_t index) {
  if (index > 0) return;
  for (Unit& unit : units_) {
    unit.begun = unit.arrived = 0;
    unit.depth = 0;
  }
}

param::GradientPlace ShardReducer::gradient_of(param::ParameterId id) {
  const std::int64_t index = layout_.unit_of(id);
  Unit& unit = units_[static_cast<std::size_t>(index)];
  if (!unit.buffer->is_taken() || unit.begun > unit.arrived) take(unit);
  const auto place = static_cast<std::size_t>(id - layout_.parameters_of(index).front());
  const bool is_first = !unit.has_gradient[place];
  unit.has_gradient[place] = true;
  return {.view = unit.buffer->view(id), .is_first = is_first};
}

void ShardReducer::take(Unit& unit) {
  // One unit may travel while another one receives; this one's own sum must have arrived.
  reductions_.wait_until(unit.begun > unit.arrived ? 0 : 1);
  unit.buffer->take();
  std::fill(unit.has_gradient.begin(), unit.has_gradient.end(), false);
}

void ShardReducer::reduce(std::int64_t index) {
  Unit& unit = units_[static_cast<std::size_t>(index)];
  if (!unit.buffer->is_taken() || unit.begun > unit.arrived) take(unit);
  DTRAIN_CHECK(unit.begun < unit.num_sums);
  ++unit.begun;
  reductions_.begin(unit.buffer->flat(), shard_of(index, unit.depth),
                    [this, index] { arrive(index); });
}

// The newest sum of the unit lies above its stack.
void ShardReducer::arrive(std::int64_t index) {
  const at::NoGradGuard no_grad;
  Unit& unit = units_[static_cast<std::size_t>(index)];
  unit.buffer->give_back();
  const comm::TreeStep step = step_of(unit.arrived++, unit.num_sums, options_);
  if (step.starts_slot) {
    ++unit.depth;
  } else {
    shard_of(index, unit.depth - 1).add_(shard_of(index, unit.depth));
  }
  for (int merge = 0; merge < step.merges; ++merge, --unit.depth) {
    shard_of(index, unit.depth - 2).add_(shard_of(index, unit.depth - 1));
  }
  if (unit.arrived == unit.num_sums) reductions_.begin_replicas(shard_of(index, 0));
}

at::Tensor ShardReducer::shard_of(std::int64_t unit, std::size_t level) const {
  return sums_.at(level).slice(layout_.shard_range(unit, shard_));
}

void ShardReducer::finish() {
  reductions_.finish();
  for (const Unit& unit : units_) {
    DTRAIN_CHECK(unit.arrived == unit.num_sums, "a unit was reduced {} of {} times", unit.arrived,
                 unit.num_sums);
  }
}

}  // namespace dtrain::parallel
