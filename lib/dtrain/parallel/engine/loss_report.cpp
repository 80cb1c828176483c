#include "dtrain/parallel/engine/loss_report.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>

#include "dtrain/base/check.h"

namespace dtrain::parallel {

LossReport::LossReport(const EngineSetup& setup, std::int64_t num_losses, std::size_t num_votes)
    : setup_(setup),
      num_losses_(num_losses),
      slots_(at::zeros({num_losses + static_cast<std::int64_t>(num_votes)},
                       setup.world.options(at::kDouble))) {}

void LossReport::reduce(const Votes& votes) {
  DTRAIN_CHECK(num_losses_ + static_cast<std::int64_t>(votes.size()) == slots_.numel());
  for (std::size_t vote = 0; vote < votes.size(); ++vote) {
    if (votes[vote]) slots_[num_losses_ + static_cast<std::int64_t>(vote)].fill_(1.0);
  }
  reduced_ = setup_.groups.world().all_reduce(slots_);
}

double LossReport::sum(double before) {
  reduced_.wait_host();
  const at::Tensor losses = slots_.cpu();
  const auto* loss = losses.const_data_ptr<double>();
  return std::accumulate(loss, loss + num_losses_, before);
}

Votes LossReport::votes() {
  reduced_.wait_host();
  const at::Tensor slots = slots_.cpu();
  const auto* slot = slots.const_data_ptr<double>();
  Votes votes;
  std::transform(slot + num_losses_, slot + slots.numel(), std::back_inserter(votes),
                 [](double count) { return count > 0; });
  return votes;
}

}  // namespace dtrain::parallel
