#include "dtrain/parallel/data/shard_reducer.h"

#include <algorithm>
#include <optional>

#include "dtrain/base/error.h"
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

// Shards held for one sum: the stack of partial sums with the one that arrives.
std::int64_t num_levels(const ReducerSetup& setup) {
  std::int64_t levels = 1;
  for (const param::UnitId unit : setup.layout.units()) {
    const std::int64_t sums = setup.schedule.count(UnitEventKind::reduce, unit);
    levels = std::max(levels, levels_for(sums, setup.options));
  }
  return levels;
}

// Elements of two units reduced one after the other: one travels while the next one receives.
std::int64_t most_at_once(const ReducerSetup& setup) {
  std::int64_t last = 0;  // elements of the unit before
  std::optional<param::UnitId> last_unit;
  std::int64_t most = 0;
  setup.schedule.for_each([&](const UnitEvent& event) {
    if (event.kind != UnitEventKind::reduce) return;
    const std::int64_t size = setup.layout.unit_range(event.unit).size();
    most = std::max(most, size + (event.unit == last_unit ? 0 : last));
    last = size;
    last_unit = event.unit;
  });
  return most;
}

}  // namespace

ShardReducer::ShardReducer(const ReducerSetup& setup, const mesh::MeshGroups& groups,
                           const param::ArenaAllocator& allocate)
    : layout_(setup.layout),
      shard_(groups.shards().rank()),
      options_(setup.options),
      reductions_(setup, groups, allocate) {
  for (std::int64_t level = 0; level < num_levels(setup); ++level) {
    sums_.push_back(param::Arena::of_trained_shard(layout_, shard_, options_.dtype, allocate));
  }
  const at::TensorOptions options = sums_.front().flat().options();
  for (const param::UnitId unit : layout_.units()) {
    units_.push_back({.buffer = std::make_unique<UnitBuffer>(layout_, unit, options, allocate),
                      .has_gradient = std::vector<bool>(
                          static_cast<std::size_t>(layout_.parameters_of(unit).size())),
                      .num_sums = setup.schedule.count(UnitEventKind::reduce, unit)});
  }
}

void ShardReducer::begin_microbatch(data::MicrobatchId microbatch) {
  if (microbatch > data::MicrobatchId(0)) return;
  for (Unit& unit : units_) {
    unit.begun = unit.arrived = 0;
    unit.depth = 0;
  }
}

param::GradientPlace ShardReducer::gradient_of(param::ParameterId id) {
  const param::UnitId own = layout_.unit_of(id);
  Unit& unit = units_[own];
  if (!unit.buffer->is_taken() || unit.begun > unit.arrived) take(unit);
  const auto place = static_cast<std::size_t>(id - layout_.parameters_of(own).front());
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

void ShardReducer::reduce(param::UnitId id) {
  Unit& unit = units_[id];
  if (!unit.buffer->is_taken() || unit.begun > unit.arrived) take(unit);
  DTRAIN_CHECK(unit.begun < unit.num_sums);
  ++unit.begun;
  reductions_.begin(unit.buffer->flat(), shard_of(id, unit.depth), [this, id] { arrive(id); });
}

// The newest sum of the unit lies above its stack.
void ShardReducer::arrive(param::UnitId id) {
  const at::NoGradGuard no_grad;
  Unit& unit = units_[id];
  unit.buffer->give_back();
  const comm::TreeStep step = step_of(unit.arrived++, unit.num_sums, options_);
  if (step.starts_slot) {
    ++unit.depth;
  } else {
    shard_of(id, unit.depth - 1).add_(shard_of(id, unit.depth));
  }
  for (int merge = 0; merge < step.merges; ++merge, --unit.depth) {
    shard_of(id, unit.depth - 2).add_(shard_of(id, unit.depth - 1));
  }
  if (unit.arrived == unit.num_sums) {
    reductions_.begin_replicas(layout_.shard_range(id, shard_), shard_of(id, 0));
  }
}

at::Tensor ShardReducer::shard_of(param::UnitId unit, std::size_t level) const {
  return sums_.at(level).slice(layout_.shard_range(unit, shard_));
}

void ShardReducer::finish() {
  reductions_.finish();
  for (const Unit& unit : units_) {
    DTRAIN_CHECK(unit.arrived == unit.num_sums, "a unit was reduced {} of {} times", unit.arrived,
                 unit.num_sums);
  }
}

MemoryPlan ShardReducer::memory(const ReducerSetup& setup) {
  const at::ScalarType dtype = setup.options.dtype;
  MemoryPlan memory = UnitReductions::memory(setup, setup.layout.largest_trained_unit());
  memory.gradients += num_levels(setup) * param::Arena::bytes_of_trained_shard(setup.layout, dtype);
  memory.units = param::bytes_of(most_at_once(setup), dtype);
  return memory;
}

}  // namespace dtrain::parallel
