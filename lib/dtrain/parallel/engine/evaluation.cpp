// The loss on sequences that no rank trains on.

#include <algorithm>
#include <deque>

#include "dtrain/data/loader.h"
#include "dtrain/device/ordered_sum.h"
#include "dtrain/parallel/engine/step_engine.h"

namespace dtrain::parallel {
namespace {

// The rounds whose losses travel, and the sum of those that have come.
class Rounds {
 public:
  void begin(LossReport report) { under_way_.push_back(std::move(report)); }
  void wait_until(std::int64_t num_under_way) {
    for (; std::ssize(under_way_) > num_under_way; under_way_.pop_front()) {
      const LossReport::Findings found = under_way_.front().read(sum_);
      sum_ = found.sum;
      is_stopped_ = is_stopped_ || found.votes.front();
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

}  // namespace

std::optional<StepLoss> StepEngine::evaluate(const EvaluationPlan& plan) {
  const comm::ProcessGroup& ranks = setup_.groups.along(mesh::Axis::dp);
  comm::ProcessGroup& world = setup_.groups.world();
  const std::int64_t max_under_way =
      world.size() == 1 ? 0 : setup_.groups.mesh().size(mesh::Axis::pp);
  const std::int64_t round = ranks.size() * plan.batch_size;
  const std::int64_t own = ranks.rank() * plan.batch_size;  // where this rank's batch begins
  Rounds rounds;
  std::int64_t begin = 0;
  for (; begin < plan.num_sequences && !rounds.is_stopped(); begin += round) {
    LossReport report(setup_, std::min(round, plan.num_sequences - begin), /*num_votes=*/1);
    const std::int64_t count = std::min(plan.batch_size, report.losses().numel() - own);
    std::vector<data::Batch> batches;  // one, or none where too few sequences are left
    if (count > 0) batches.push_back(plan.read(begin + own, count));
    executor_.evaluate(
        {.microbatches = batches,
         .on_losses =
             [&](MicrobatchId, const at::Tensor& losses) {
               report.losses().narrow(0, own, count).copy_(device::ordered_sum(losses));
             },
         .on_last_losses = [&] { report.reduce({plan.wants_stop && plan.wants_stop()}); }});
    rounds.begin(std::move(report));
    rounds.wait_until(max_under_way);
  }
  executor_.finish_sends();
  rounds.wait_until(0);
  if (begin < plan.num_sequences) return std::nullopt;
  return StepLoss{.sum_nll = rounds.sum(), .num_tokens = plan.num_sequences * plan.length};
}

std::optional<double> StepEngine::evaluate(const data::EvaluationSequences& sequences,
                                           std::int64_t batch_size,
                                           const std::function<bool()>& wants_stop) {
  const std::optional<StepLoss> loss = evaluate(
      {.num_sequences = sequences.size(),
       .length = sequences.length(),
       .batch_size = batch_size,
       .read = [&](std::int64_t first, std::int64_t count) { return sequences.read(first, count); },
       .wants_stop = wants_stop});
  return loss ? std::optional(loss->mean()) : std::nullopt;
}

}  // namespace dtrain::parallel
