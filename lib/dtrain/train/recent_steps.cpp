#include "dtrain/train/recent_steps.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace dtrain::train {
namespace {

constexpr std::size_t kMost = 50;

void keep(std::deque<double>& values, double value) {
  values.push_back(value);
  if (values.size() > kMost) values.pop_front();
}

}  // namespace

void RecentSteps::note(const Step& step) {
  if (std::isfinite(step.loss)) keep(losses_, step.loss);
  keep(seconds_, step.seconds);
}

std::optional<double> RecentSteps::loss() const {
  if (losses_.empty()) return std::nullopt;
  return std::accumulate(losses_.begin(), losses_.end(), 0.0) / static_cast<double>(losses_.size());
}

std::optional<double> RecentSteps::seconds() const {
  if (seconds_.empty()) return std::nullopt;
  std::vector<double> sorted(seconds_.begin(), seconds_.end());
  std::ranges::sort(sorted);
  return sorted[sorted.size() / 2];
}

}  // namespace dtrain::train
