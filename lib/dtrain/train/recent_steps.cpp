#include "dtrain/train/recent_steps.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace dtrain::train {
namespace {

constexpr std::size_t kMost = 50;

}  // namespace

void RecentSteps::note(const Step& step) {
  steps_.push_back(step);
  if (steps_.size() > kMost) steps_.pop_front();
}

std::optional<metrics::MeanLoss> RecentSteps::loss() const {
  metrics::MeanLoss mean;
  for (const Step& each : steps_) {
    if (!std::isfinite(each.loss)) continue;
    mean.loss += each.loss;
    ++mean.num_losses;
  }
  if (mean.num_losses == 0) return std::nullopt;
  mean.loss /= static_cast<double>(mean.num_losses);
  mean.first_step = steps_.front().step;
  mean.last_step = steps_.back().step;
  return mean;
}

std::optional<double> RecentSteps::seconds() const {
  if (steps_.empty()) return std::nullopt;
  std::vector<double> sorted;
  for (const Step& each : steps_) sorted.push_back(each.seconds);
  std::ranges::sort(sorted);
  return sorted[sorted.size() / 2];
}

}  // namespace dtrain::train
