#include "dtrain/train/internal/spike_guard.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "dtrain/base/elementary.h"

namespace dtrain::train {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// The least deviation of a logarithm: a figure that hardly moves would make a spike of every breath.
// A loss spike may be small; an update of less than about twice the usual gradient does no harm.
constexpr double kLeastLossDeviation = 1e-3;
constexpr double kLeastNormDeviation = 0.1;

// How far from the mean a logarithm may lie.
double reach_of(const FigureLevel& level, double threshold, double least_deviation) {
  if (level.num_steps < SpikeGuard::kWarmUpSteps) return kNever;
  return threshold * std::max(std::sqrt(level.variance), least_deviation);
}

double limit_of(const FigureLevel& level, double reach) {
  const double exponent = (level.mean + reach) / std::numbers::ln2;
  return std::abs(exponent) <= 1000 ? base::power_of_two(exponent) : kNever;
}

// Takes a logarithm that lies beyond the reach; true if the level is now that of the last ones.
bool becomes_new_level(double value, FigureLevel& level) {
  const std::int64_t side = value > level.mean ? 1 : -1;
  if (level.num_beyond * side <= 0) level.num_beyond = 0;
  level.num_beyond += side;
  level.mean_beyond +=
      (value - level.mean_beyond) / static_cast<double>(std::abs(level.num_beyond));
  if (std::abs(level.num_beyond) < SpikeGuard::kNewLevelSteps) return false;
  level.mean = level.mean_beyond;
  level.num_beyond = 0;
  return true;
}

void add(double figure, double reach, FigureLevel& level) {
  if (figure < std::numeric_limits<double>::min()) return;  // no logarithm
  const double value = base::logarithm(figure);
  ++level.num_steps;
  if (std::abs(value - level.mean) <= reach) {
    level.num_beyond = 0;
  } else if (becomes_new_level(value, level)) {
    return;
  }
  const double weight =
      std::max(3 / static_cast<double>(level.num_steps + 2), 1.0 / SpikeGuard::kWindow);
  const double apart = std::clamp(value - level.mean, -reach, reach);
  level.mean += weight * apart;
  level.variance = (1 - weight) * (level.variance + weight * apart * apart);
}

}  // namespace

parallel::StepLimits SpikeGuard::limits() const {
  const auto& [loss, norm] = statistics_;
  return {.loss = limit_of(loss, reach_of(loss, threshold_, kLeastLossDeviation)),
          .grad_norm = limit_of(norm, reach_of(norm, threshold_, kLeastNormDeviation))};
}

void SpikeGuard::note(double loss, double grad_norm) {
  auto& [loss_level, norm_level] = statistics_;
  add(loss, reach_of(loss_level, threshold_, kLeastLossDeviation), loss_level);
  add(grad_norm, reach_of(norm_level, threshold_, kLeastNormDeviation), norm_level);
}

}  // namespace dtrain::train
