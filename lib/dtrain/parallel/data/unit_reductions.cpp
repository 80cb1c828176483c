#include "dtrain/parallel/data/unit_reductions.h"

#include <ATen/ops/empty_like.h>

#include <utility>

namespace dtrain::parallel {

void UnitReductions::begin(const at::Tensor& input, const at::Tensor& output,
                           std::function<void()> arrived) {
  // A device is not asked: ranks would begin their sums over replicas at different calls.
  if (input.is_cpu()) poll();
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

void UnitReductions::begin_replicas(const at::Tensor& shard) {
  replicas_.push_back(groups_.replicas().all_reduce(shard));
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
  for (comm::Work& work : replicas_) work.wait();
  replicas_.clear();
}

MemoryPlan UnitReductions::memory(const ReducerSetup& setup, std::int64_t elements) {
  const std::int64_t arriving = elements / setup.layout.num_shards();
  return {.travelling = setup.options.codec->bytes(elements + arriving, setup.options.dtype)};
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
