#include "dtrain/parallel/engine/loss_report.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>

#include "dtrain/base/check.h"

namespace dtrain::parallel {

LossReport::LossReport(comm::ProcessGroup& world, std::int64_t num_losses, std::size_t num_votes)
    : world_(world),
      num_losses_(num_losses),
      slots_(at::zeros({num_losses + static_cast<std::int64_t>(num_votes)},
                       at::TensorOptions().dtype(at::kDouble))) {}

void LossReport::reduce(const Votes& votes) {
  DTRAIN_CHECK(num_losses_ + static_cast<std::int64_t>(votes.size()) == slots_.numel());
  for (std::size_t vote = 0; vote < votes.size(); ++vote) {
    if (votes[vote]) slots_[num_losses_ + static_cast<std::int64_t>(vote)].fill_(1.0);
  }
  reduced_ = world_.all_reduce(slots_);
}

double LossReport::sum(double before) {
  reduced_.wait();
  const auto* loss = slots_.const_data_ptr<double>();
  return std::accumulate(loss, loss + num_losses_, before);
}

Votes LossReport::votes() {
  reduced_.wait();
  const auto* slot = slots_.const_data_ptr<double>();
  Votes votes;
  std::transform(slot + num_losses_, slot + slots_.numel(), std::back_inserter(votes),
                 [](double count) { return count > 0; });
  return votes;
}

}  // namespace dtrain::parallel
