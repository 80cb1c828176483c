#include "dtrain/train/internal/spike_detector.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "dtrain/base/elementary.h"

namespace dtrain::train {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// Lower bounds of a logarithm's standard deviation: a figure that hardly varies would make any
// fluctuation a spike. A loss spike may be small; a gradient of less than about twice the usual norm
// does no harm.
constexpr double kMinLossDeviation = 1e-3;
constexpr double kMinNormDeviation = 0.1;

// The largest distance of a logarithm from the mean that is no spike.
double tolerance_of(const FigureLevel& level, double threshold, double min_deviation) {
  if (level.num_steps < SpikeDetector::kWarmUpSteps) return kNever;
  return threshold * std::max(std::sqrt(level.variance), min_deviation);
}

double limit_of(const FigureLevel& level, double tolerance) {
  const double exponent = (level.mean + tolerance) / std::numbers::ln2;
  return std::abs(exponent) <= 1000 ? base::power_of_two(exponent) : kNever;
}

// Takes a logarithm outside the tolerance; true if the level has moved to the last such ones.
bool becomes_new_level(double value, FigureLevel& level) {
  const std::int64_t side = value > level.mean ? 1 : -1;
  if (level.num_beyond * side <= 0) level.num_beyond = 0;
  level.num_beyond += side;
  level.mean_beyond +=
      (value - level.mean_beyond) / static_cast<double>(std::abs(level.num_beyond));
  if (std::abs(level.num_beyond) < SpikeDetector::kNewLevelSteps) return false;
  level.mean = level.mean_beyond;
  level.num_beyond = 0;
  return true;
}

void add(double figure, double tolerance, FigureLevel& level) {
  if (figure < std::numeric_limits<double>::min()) return;  // no logarithm
  const double value = base::logarithm(figure);
  ++level.num_steps;
  if (std::abs(value - level.mean) <= tolerance) {
    level.num_beyond = 0;
  } else if (becomes_new_level(value, level)) {
    return;
  }
  const double weight =
      std::max(3 / static_cast<double>(level.num_steps + 2), 1.0 / SpikeDetector::kWindow);
  const double difference = std::clamp(value - level.mean, -tolerance, tolerance);
  level.mean += weight * difference;
  level.variance = (1 - weight) * (level.variance + weight * difference * difference);
}

}  // namespace

parallel::StepLimits SpikeDetector::limits() const {
  const auto& [loss, norm] = statistics_;
  return {.loss = limit_of(loss, tolerance_of(loss, threshold_, kMinLossDeviation)),
          .grad_norm = limit_of(norm, tolerance_of(norm, threshold_, kMinNormDeviation))};
}

void SpikeDetector::note(double loss, double grad_norm) {
  auto& [loss_level, norm_level] = statistics_;
  add(loss, tolerance_of(loss_level, threshold_, kMinLossDeviation), loss_level);
  add(grad_norm, tolerance_of(norm_level, threshold_, kMinNormDeviation), norm_level);
}

}  // namespace dtrain::train
