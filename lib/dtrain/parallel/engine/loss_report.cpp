#include "dtrain/parallel/engine/loss_report.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <iterator>
#include <numeric>

#include "dtrain/base/error.h"

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

LossReport::Findings LossReport::read(double before, const at::Tensor& along) {
  wait();
  // (losses + votes + n) float64
  const at::Tensor all = (along.defined() ? at::cat({slots_, along}) : slots_).cpu();
  reduced_.wait_host();  // it has ended; where it was aborted the copy holds anything
  const auto* number = all.const_data_ptr<double>();
  Findings found{.sum = std::accumulate(number, number + num_losses_, before)};
  std::transform(number + num_losses_, number + slots_.numel(), std::back_inserter(found.votes),
                 [](double count) { return count > 0; });
  found.values.assign(number + slots_.numel(), number + all.numel());
  return found;
}

}  // namespace dtrain::parallel
