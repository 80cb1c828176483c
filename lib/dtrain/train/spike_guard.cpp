#include "dtrain/train/spike_guard.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace dtrain::train {
namespace {

// A figure that hardly moves would make a spike of every breath.
constexpr double kLeastDeviation = 1e-3;  // of the mean

double limit_of(const Moments& moments, double threshold) {
  const double deviation =
      std::max(std::sqrt(moments.variance), kLeastDeviation * std::abs(moments.mean));
  return moments.mean + threshold * deviation;
}

void add(double value, double weight, Moments& moments) {
  const double apart = value - moments.mean;
  moments.mean += weight * apart;
  moments.variance = (1 - weight) * (moments.variance + weight * apart * apart);
}

}  // namespace

parallel::StepLimits SpikeGuard::limits() const {
  if (statistics_.num_steps < kWarmUpSteps) return {};
  return {.loss = limit_of(statistics_.loss, threshold_),
          .grad_norm = limit_of(statistics_.grad_norm, threshold_)};
}

void SpikeGuard::note(double loss, double grad_norm) {
  const parallel::StepLimits most = limits();
  const std::int64_t count = std::min(++statistics_.num_steps, kWindow);
  const double weight = 1 / static_cast<double>(count);
  add(std::min(loss, most.loss), weight, statistics_.loss);
  add(std::min(grad_norm, most.grad_norm), weight, statistics_.grad_norm);
}

std::string describe_spike(const parallel::StepResult& result, const parallel::StepLimits& limits) {
  std::string text;
  const auto tell = [&](std::string_view name, double value, double limit) {
    if (value <= limit) return;
    text +=
        fmt::format("{}{} {:.4g} is above {:.4g}", text.empty() ? "" : ", ", name, value, limit);
  };
  tell("loss", result.loss.mean(), limits.loss);
  tell("gradient norm", result.grad_norm, limits.grad_norm);
  return text;
}

}  // namespace dtrain::train
