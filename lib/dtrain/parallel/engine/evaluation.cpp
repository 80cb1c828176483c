#include "dtrain/parallel/engine/evaluation.h"

#include <algorithm>
#include <deque>
#include <numeric>

namespace dtrain::parallel {
namespace {

// The rounds whose losses travel, and the sum of those that have come.
class Rounds {
 public:
  void begin(LossReport report) { under_way_.push_back(std::move(report)); }
  void wait_until(std::int64_t num_under_way) {
    for (; std::ssize(under_way_) > num_under_way; under_way_.pop_front()) {
      sum_ = under_way_.front().sum(sum_);
      is_stopped_ = is_stopped_ || under_way_.front().votes().front();
    }
  }
  [[nodiscard]] double sum() const { return sum_; }
  /// Returns whether any rank wanted to stop after a round with known losses; equal on all ranks.
  [[nodiscard]] bool is_stopped() const { return is_stopped_; }

 private:
  std::deque<LossReport> under_way_;
  double sum_ = 0;
  bool is_stopped_ = false;
};

// Writes the sum of each row of losses (B, T) to sums (B) float64, its tokens in order, whatever
// the number of rows.
void sum_rows(const at::Tensor& losses, const at::Tensor& sums) {
  const at::Tensor wide = losses.to(at::kDouble).contiguous();  // (B, T)
  const std::int64_t length = wide.size(1);
  const auto* row = wide.const_data_ptr<double>();
  auto* sum = sums.mutable_data_ptr<double>();
  for (std::int64_t index = 0; index < wide.size(0); ++index, row += length) {
    sum[index] = std::accumulate(row, row + length, 0.0);
  }
}

}  // namespace

std::optional<StepLoss> evaluate(const EngineSetup& setup, Executor& executor,
                                 const EvaluationPlan& plan) {
  const comm::ProcessGroup& ranks = setup.groups.along(mesh::Axis::dp);
  comm::ProcessGroup& world = setup.groups.world();
  const std::int64_t max_under_way =
      world.size() == 1 ? 0 : setup.groups.mesh().size(mesh::Axis::pp);
  const std::int64_t round = ranks.size() * plan.batch_size;
  const std::int64_t own = ranks.rank() * plan.batch_size;  // where this rank's batch begins
  Rounds rounds;
  std::int64_t begin = 0;
  for (; begin < plan.num_sequences && !rounds.is_stopped(); begin += round) {
    LossReport report(setup, std::min(round, plan.num_sequences - begin), /*num_votes=*/1);
    const std::int64_t count = std::min(plan.batch_size, report.losses().numel() - own);
    std::vector<data::Batch> batches;  // one, or none where too few sequences are left
    if (count > 0) batches.push_back(plan.read(begin + own, count));
    executor.evaluate(
        {.microbatches = batches,
         .on_losses =
             [&](MicrobatchId, const at::Tensor& losses) {
               sum_rows(losses, report.losses().narrow(0, own, count));
             },
         .on_last_losses = [&] { report.reduce({plan.wants_stop && plan.wants_stop()}); }});
    rounds.begin(std::move(report));
    rounds.wait_until(max_under_way);
  }
  executor.finish_sends();
  rounds.wait_until(0);
  if (begin < plan.num_sequences) return std::nullopt;
  return StepLoss{.sum_nll = rounds.sum(), .num_tokens = plan.num_sequences * plan.length};
}

}  // namespace dtrain::parallel
