#include "dtrain/parallel/data/internal/sharded_reducers.h"

#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/comm/tree_order.h"

namespace dtrain::parallel {
namespace {

// Over the replicas of shards, which travel as they are.
RankSumSetup replica_setup(const ReducerSetup& setup, param::ShardId shard) {
  return {.layout = setup.layout,
          .shard = shard,
          .compression = setup.options.compression,
          .dtype = setup.options.dtype,
          .codec = travel_in(setup.options.dtype)};
}

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

ShardedReducer::ShardedReducer(const ReducerSetup& setup, const mesh::MeshGroups& groups,
                               const param::ArenaAllocator& allocate)
    : layout_(setup.layout),
      shard_(groups.shards().rank()),
      replicas_(make_rank_sum(replica_setup(setup, shard_), groups.replicas(), allocate)),
      groups_(groups),
      codec_(setup.options.codec) {}

void ShardedReducer::begin_sum(const at::Tensor& input, const at::Tensor& output,
                               std::function<void()> arrived) {
  // What has arrived begins its sum over the replicas, on each rank when it is seen there: not
  // where that waits for other ranks. A device is not asked: its calls must be in one order
  // everywhere.
  if (input.is_cpu() && !replicas_->waits_in_begin()) {
    while (!under_way_.empty() && under_way_.front().work.is_completed()) take_first();
  }
  Sum sum{.input = codec_->encode(input),
          .result = output,
          .output = output,
          .work = {},
          .arrived = std::move(arrived)};
  if (codec_->copies(output.scalar_type())) {
    sum.result = at::empty_like(output, output.options().dtype(codec_->dtype()));
  }
  sum.work = groups_.shards().reduce_scatter(sum.input, sum.result);
  under_way_.push_back(std::move(sum));
}

void ShardedReducer::take_first() {
  Sum sum = std::move(under_way_.front());
  under_way_.pop_front();
  sum.work.wait();
  if (!sum.result.is_same(sum.output)) codec_->decode(sum.result, sum.output);
  sum.arrived();
}

void ShardedReducer::wait_until(std::size_t count) {
  while (under_way_.size() > count) take_first();
}

void ShardedReducer::finish() {
  wait_until(0);
  replicas_->finish();
}

MemoryPlan ShardedReducer::memory_of_sums(const ReducerSetup& setup, std::int64_t elements) {
  const std::int64_t arriving = elements / setup.layout.num_shards();
  MemoryPlan memory{.travelling =
                        setup.options.codec->bytes(elements + arriving, setup.options.dtype)};
  const std::int64_t replicas = setup.num_ranks / setup.layout.num_shards();
  if (replicas > 1 && !setup.options.compression.scheme.is_none()) {
    memory = memory + CompressedSum::memory(replica_setup(setup, param::ShardId(0)), replicas);
  }
  return memory;
}

ReducerTraffic ShardedReducer::traffic(const ReducerSetup& setup) {
  const param::ArenaLayout& layout = setup.layout;
  ReducerTraffic traffic;
  for (const param::UnitId unit : layout.units()) {
    const std::int64_t reductions = setup.schedule.count(UnitEventKind::reduce, unit);
    const std::int64_t shard = layout.unit_range(unit).size() / layout.num_shards();
    traffic.reductions += reductions;
    traffic.bytes +=
        reductions * setup.options.codec->sent_bytes(shard * (layout.num_shards() - 1));
  }
  return traffic;
}

WholeReducer::WholeReducer(const ReducerSetup& setup, const mesh::MeshGroups& groups,
                           const param::ArenaAllocator& allocate)
    : ShardedReducer(setup, groups, allocate),
      store_(setup.layout, setup.options.dtype, allocate, setup.options.num_microbatches,
             setup.options.reduction) {}

void WholeReducer::reduce(param::UnitId unit) {
  const param::ElementRange whole = layout_.unit_range(unit);
  store_.finish(whole);
  const param::ElementRange own = layout_.shard_range(unit, shard_);
  const at::Tensor shard = store_.gradients().slice(own);
  begin_sum(store_.gradients().slice(whole), shard,
            [this, own, shard] { replicas_->begin(own, shard); });
}

MemoryPlan WholeReducer::memory(const ReducerSetup& setup) {
  const ReducerOptions& options = setup.options;
  MemoryPlan memory = memory_of_sums(setup, setup.layout.num_trained());
  memory.gradients += GradientStore::bytes(setup.layout, options.dtype, options.num_microbatches,
                                           options.reduction);
  return memory;
}

ShardReducer::ShardReducer(const ReducerSetup& setup, const mesh::MeshGroups& groups,
                           const param::ArenaAllocator& allocate)
    : ShardedReducer(setup, groups, allocate), options_(setup.options) {
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

param::GradientTarget ShardReducer::gradient_of(param::ParameterId id) {
  const param::UnitId own = layout_.unit_of(id);
  Unit& unit = receiving(own);
  const auto place = static_cast<std::size_t>(id - layout_.parameters_of(own).front());
  const bool is_first = !unit.has_gradient[place];
  unit.has_gradient[place] = true;
  return {.view = unit.buffer->view(id), .is_first = is_first};
}

ShardReducer::Unit& ShardReducer::receiving(param::UnitId id) {
  Unit& unit = units_[id];
  if (unit.buffer->is_taken() && unit.begun == unit.arrived) return unit;
  // One unit may travel while another one receives; this one's own sum must have arrived.
  wait_until(unit.begun > unit.arrived ? 0 : 1);
  unit.buffer->take();
  std::fill(unit.has_gradient.begin(), unit.has_gradient.end(), false);
  return unit;
}

void ShardReducer::reduce(param::UnitId id) {
  Unit& unit = receiving(id);
  DTRAIN_CHECK(unit.begun < unit.num_sums);
  ++unit.begun;
  begin_sum(unit.buffer->flat(), shard_of(id, unit.depth), [this, id] { arrive(id); });
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
    replicas_->begin(layout_.shard_range(id, shard_), shard_of(id, 0));
  }
}

at::Tensor ShardReducer::shard_of(param::UnitId unit, std::size_t level) const {
  return sums_.at(level).slice(layout_.shard_range(unit, shard_));
}

void ShardReducer::finish() {
  ShardedReducer::finish();
  for (const Unit& unit : units_) {
    DTRAIN_CHECK(unit.arrived == unit.num_sums, "a unit was reduced {} of {} times", unit.arrived,
                 unit.num_sums);
  }
}

MemoryPlan ShardReducer::memory(const ReducerSetup& setup) {
  const at::ScalarType dtype = setup.options.dtype;
  MemoryPlan memory = memory_of_sums(setup, setup.layout.largest_trained_unit());
  memory.gradients += num_levels(setup) * param::Arena::bytes_of_trained_shard(setup.layout, dtype);
  memory.units = param::bytes_of(most_at_once(setup), dtype);
  return memory;
}

}  // namespace dtrain::parallel
