#include "dtrain/parallel/data/internal/sharded_reducers.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/comm/tree_order.h"

namespace dtrain::parallel {
namespace {

// Reduces shards over replicas, uncast.
AllReducerSetup replica_setup(const ReducerSetup& setup, param::ShardId shard) {
  return {.layout = setup.layout,
          .shard = shard,
          .compression = setup.options.compression,
          .dtype = setup.options.dtype,
          .codec = dtype_codec(setup.options.dtype)};
}

// Returns how sum `index` of `count` is accumulated: in tree order over microbatches, or left to
// right if a unit has other counts.
comm::TreeStep step_of(std::int64_t index, std::int64_t count, const ReducerOptions& options) {
  const bool in_tree_order =
      options.reduction == comm::Reduction::ordered && count == options.num_microbatches;
  if (in_tree_order) return comm::tree_step(index, count);
  return {.starts_slot = index == 0, .merges = 0};
}

// Returns the peak number of partial sums, including the newest one.
std::int64_t stack_depth(std::int64_t count, const ReducerOptions& options) {
  std::int64_t depth = 0;
  std::int64_t levels = 0;
  for (std::int64_t index = 0; index < count; ++index) {
    levels = std::max(levels, depth + 1);
    const comm::TreeStep step = step_of(index, count, options);
    depth += (step.starts_slot ? 1 : 0) - step.merges;
  }
  return levels;
}

// Returns the deepest stack of partial sums over all units.
std::int64_t max_stack_depth(const ReducerSetup& setup) {
  std::int64_t levels = 1;
  for (const param::UnitId unit : setup.layout.units()) {
    const std::int64_t sums = setup.schedule.count(UnitEventKind::reduce, unit);
    levels = std::max(levels, stack_depth(sums, setup.options));
  }
  return levels;
}

// Returns the peak elements of two units reduced in succession: one is sent while the next
// accumulates.
std::int64_t peak_unit_elements(const ReducerSetup& setup) {
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
      replicas_(make_all_reducer(replica_setup(setup, shard_), groups.replicas(), allocate)),
      groups_(groups),
      codec_(setup.options.codec) {}

void ShardedReducer::begin_reduce_scatter(const at::Tensor& input, const at::Tensor& output,
                                          std::function<void()> on_complete) {
  // Completed reductions start their sum over replicas at a time that may differ between ranks, so
  // not if that blocks on other ranks. On a device all calls must have one order on all ranks, so
  // it is not polled.
  if (input.is_cpu() && !replicas_->blocks_in_begin()) {
    while (!in_flight_.empty() && in_flight_.front().work.is_completed()) complete_first();
  }
  InFlightReduction reduction{.input = codec_->encode(input),
                              .result = output,
                              .output = output,
                              .work = {},
                              .on_complete = std::move(on_complete)};
  if (codec_->copies(output.scalar_type())) {
    reduction.result = at::empty_like(output, output.options().dtype(codec_->dtype()));
  }
  reduction.work = groups_.shards().reduce_scatter(reduction.input, reduction.result);
  in_flight_.push_back(std::move(reduction));
}

void ShardedReducer::complete_first() {
  InFlightReduction reduction = std::move(in_flight_.front());
  in_flight_.pop_front();
  reduction.work.wait();
  if (!reduction.result.is_same(reduction.output))
    codec_->decode(reduction.result, reduction.output);
  reduction.on_complete();
}

void ShardedReducer::limit_in_flight(std::size_t count) {
  while (in_flight_.size() > count) complete_first();
}

void ShardedReducer::finish() {
  limit_in_flight(0);
  replicas_->finish();
}

MemoryPlan ShardedReducer::reduction_memory(const ReducerSetup& setup, std::int64_t elements) {
  const std::int64_t arriving = elements / setup.layout.num_shards();
  MemoryPlan memory{.encoded_gradients =
                        setup.options.codec->bytes(elements + arriving, setup.options.dtype)};
  const std::int64_t replicas = setup.num_ranks / setup.layout.num_shards();
  if (replicas > 1 && !setup.options.compression.scheme.is_none()) {
    memory =
        memory + CompressedAllReducer::memory(replica_setup(setup, param::ShardId(0)), replicas);
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

FullGradientReducer::FullGradientReducer(const ReducerSetup& setup, const mesh::MeshGroups& groups,
                                         const param::ArenaAllocator& allocate)
    : ShardedReducer(setup, groups, allocate),
      store_(setup.layout, setup.options.dtype, allocate, setup.options.num_microbatches,
             setup.options.reduction) {}

void FullGradientReducer::reduce(param::UnitId unit) {
  const param::ElementRange whole = layout_.unit_range(unit);
  store_.finish(whole);
  const param::ElementRange own = layout_.shard_range(unit, shard_);
  const at::Tensor shard = store_.gradients().slice(own);
  begin_reduce_scatter(store_.gradients().slice(whole), shard,
                       [this, own, shard] { replicas_->begin(own, shard); });
}

MemoryPlan FullGradientReducer::memory(const ReducerSetup& setup) {
  const ReducerOptions& options = setup.options;
  MemoryPlan memory = reduction_memory(setup, setup.layout.num_trained());
  memory.gradients += GradientStore::bytes(setup.layout, options.dtype, options.num_microbatches,
                                           options.reduction);
  return memory;
}

GradientShardReducer::GradientShardReducer(const ReducerSetup& setup,
                                           const mesh::MeshGroups& groups,
                                           const param::ArenaAllocator& allocate)
    : ShardedReducer(setup, groups, allocate), options_(setup.options) {
  for (std::int64_t level = 0; level < max_stack_depth(setup); ++level) {
    sums_.push_back(param::Arena::of_trained_shard(layout_, shard_, options_.dtype, allocate));
  }
  const at::TensorOptions options = sums_.front().flat().options();
  for (const param::UnitId unit : layout_.units()) {
    units_.push_back({.buffer = std::make_unique<UnitBuffer>(layout_, unit, options, allocate),
                      .has_gradient = std::vector<bool>(
                          static_cast<std::size_t>(layout_.parameters_of(unit).size())),
                      .num_reductions = setup.schedule.count(UnitEventKind::reduce, unit)});
  }
}

void GradientShardReducer::begin_microbatch(data::MicrobatchId microbatch) {
  if (microbatch > data::MicrobatchId(0)) return;
  for (Unit& unit : units_) {
    unit.started = unit.completed = 0;
    unit.depth = 0;
  }
}

param::GradientTarget GradientShardReducer::gradient_of(param::ParameterId id) {
  const param::UnitId own = layout_.unit_of(id);
  Unit& unit = receiving_unit(own);
  const auto place = static_cast<std::size_t>(id - layout_.parameters_of(own).front());
  const bool is_first = !unit.has_gradient[place];
  unit.has_gradient[place] = true;
  return {.view = unit.buffer->view(id), .is_first = is_first};
}

GradientShardReducer::Unit& GradientShardReducer::receiving_unit(param::UnitId id) {
  Unit& unit = units_[id];
  if (unit.buffer->is_allocated() && unit.started == unit.completed) return unit;
  // One unit may be in flight while another one accumulates; this unit's own reduction must have
  // completed.
  limit_in_flight(unit.started > unit.completed ? 0 : 1);
  unit.buffer->allocate();
  std::fill(unit.has_gradient.begin(), unit.has_gradient.end(), false);
  return unit;
}

void GradientShardReducer::reduce(param::UnitId id) {
  Unit& unit = receiving_unit(id);
  DTRAIN_CHECK(unit.started < unit.num_reductions);
  ++unit.started;
  begin_reduce_scatter(unit.buffer->flat(), shard_of(id, unit.depth),
                       [this, id] { accumulate(id); });
}

// The unit's newest sum is at index `depth`, on top of its stack.
void GradientShardReducer::accumulate(param::UnitId id) {
  const at::NoGradGuard no_grad;
  Unit& unit = units_[id];
  unit.buffer->release();
  const comm::TreeStep step = step_of(unit.completed++, unit.num_reductions, options_);
  if (step.starts_slot) {
    ++unit.depth;
  } else {
    shard_of(id, unit.depth - 1).add_(shard_of(id, unit.depth));
  }
  for (int merge = 0; merge < step.merges; ++merge, --unit.depth) {
    shard_of(id, unit.depth - 2).add_(shard_of(id, unit.depth - 1));
  }
  if (unit.completed == unit.num_reductions) {
    replicas_->begin(layout_.shard_range(id, shard_), shard_of(id, 0));
  }
}

at::Tensor GradientShardReducer::shard_of(param::UnitId unit, std::size_t level) const {
  return sums_.at(level).slice(layout_.shard_range(unit, shard_));
}

void GradientShardReducer::finish() {
  ShardedReducer::finish();
  for (const Unit& unit : units_) {
    DTRAIN_CHECK(unit.completed == unit.num_reductions, "a unit was reduced {} of {} times",
                 unit.completed, unit.num_reductions);
  }
}

MemoryPlan GradientShardReducer::memory(const ReducerSetup& setup) {
  const at::ScalarType dtype = setup.options.dtype;
  MemoryPlan memory = reduction_memory(setup, setup.layout.largest_unit(param::Elements::trained));
  memory.gradients +=
      max_stack_depth(setup) * param::Arena::bytes_of_trained_shard(setup.layout, dtype);
  memory.units = param::bytes_of(peak_unit_elements(setup), dtype);
  return memory;
}

}  // namespace dtrain::parallel
