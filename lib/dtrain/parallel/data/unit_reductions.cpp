#include "dtrain/parallel/data/unit_reductions.h"

#include <ATen/ops/empty_like.h>

#include <utility>

namespace dtrain::parallel {

void UnitReductions::begin(const at::Tensor& input, const at::Tensor& output,
                           std::function<void()> arrived) {
  poll();
  Sum sum{.input = input.to(dtype_),
          .result = output,
          .output = output,
          .work = {},
          .arrived = std::move(arrived)};
  if (output.scalar_type() != dtype_) {
    sum.result = at::empty_like(output, output.options().dtype(dtype_));
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
  if (!sum.result.is_same(sum.output)) sum.output.copy_(sum.result);
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

}  // namespace dtrain::parallel
