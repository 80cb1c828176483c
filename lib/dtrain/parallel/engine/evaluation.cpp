#include "dtrain/parallel/engine/evaluation.h"

#include <ATen/ops/zeros.h>

#include <numeric>
#include <utility>

namespace dtrain::parallel {

at::Tensor EvaluationReports::begin_round(std::int64_t num_sequences) {
  current_ = at::zeros({num_sequences + 1}, at::TensorOptions().dtype(at::kDouble));
  return current_.narrow(0, 0, num_sequences);
}

void EvaluationReports::end_round(bool wants_stop) {
  const at::Tensor slots = std::exchange(current_, at::Tensor());
  slots.mutable_data_ptr<double>()[slots.numel() - 1] = wants_stop ? 1 : 0;
  under_way_.push_back({slots, world_.all_reduce(slots)});
  while (static_cast<std::int64_t>(under_way_.size()) > max_under_way_) take_first();
}

double EvaluationReports::finish() {
  while (!under_way_.empty()) take_first();
  return sum_;
}

void EvaluationReports::take_first() {
  Round round = std::move(under_way_.front());
  under_way_.pop_front();
  round.reduced.wait();
  const auto* slot = round.slots.const_data_ptr<double>();
  const std::int64_t num_sequences = round.slots.numel() - 1;
  sum_ = std::accumulate(slot, slot + num_sequences, sum_);
  is_stopped_ = is_stopped_ || slot[num_sequences] > 0;
}

void sum_rows(const at::Tensor& losses, const at::Tensor& sums) {
  const at::Tensor wide = losses.to(at::kDouble).contiguous();  // (B, T)
  const std::int64_t length = wide.size(1);
  const auto* row = wide.const_data_ptr<double>();
  auto* sum = sums.mutable_data_ptr<double>();
  for (std::int64_t index = 0; index < wide.size(0); ++index, row += length) {
    sum[index] = std::accumulate(row, row + length, 0.0);
  }
}

}  // namespace dtrain::parallel
