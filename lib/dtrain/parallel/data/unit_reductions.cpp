#include "dtrain/parallel/data/unit_reductions.h"

#include <ATen/ops/empty_like.h>

#include <utility>

#include "dtrain/parallel/compress/compressed_sum.h"

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

}  // namespace

UnitReductions::UnitReductions(const ReducerSetup& setup, const mesh::MeshGroups& groups,
                               const param::ArenaAllocator& allocate)
    : groups_(groups),
      codec_(setup.options.codec),
      replicas_(make_rank_sum(replica_setup(setup, param::ShardId(groups.shards().rank())),
                              groups.replicas(), allocate)) {}

void UnitReductions::begin(const at::Tensor& input, const at::Tensor& output,
                           std::function<void()> arrived) {
  // What has arrived begins its sum over the replicas, on each rank when it is seen there: not
  // where that waits for other ranks. A device is not asked: its calls must be in one order
  // everywhere.
  if (input.is_cpu() && !replicas_->waits_in_begin()) poll();
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

void UnitReductions::take_first() {
  Sum sum = std::move(under_way_.front());
  under_way_.pop_front();
  sum.work.wait();
  if (!sum.result.is_same(sum.output)) codec_->decode(sum.result, sum.output);
  sum.arrived();
}

void UnitReductions::wait_until(std::size_t count) {
  while (under_way_.size() > count) take_first();
}

void UnitReductions::poll() {
  while (!under_way_.empty() && under_way_.front().work.is_completed()) take_first();
}

void UnitReductions::finish() {
  wait_until(0);
  replicas_->finish();
}

MemoryPlan UnitReductions::memory(const ReducerSetup& setup, std::int64_t elements) {
  const std::int64_t arriving = elements / setup.layout.num_shards();
  MemoryPlan memory{.travelling =
                        setup.options.codec->bytes(elements + arriving, setup.options.dtype)};
  const std::int64_t replicas = setup.num_ranks / setup.layout.num_shards();
  if (replicas > 1 && !setup.options.compression.scheme.is_none()) {
    memory = memory + CompressedSum::memory(replica_setup(setup, param::ShardId(0)), replicas);
  }
  return memory;
}

ReducerTraffic UnitReductions::traffic(const ReducerSetup& setup) {
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

}  // namespace dtrain::parallel
