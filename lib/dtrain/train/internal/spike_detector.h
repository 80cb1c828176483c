// Finds steps whose loss or gradient norm is far above those of the steps before.
#pragma once

#include <cstdint>

#include "dtrain/parallel/engine/step_engine.h"
#include "dtrain/train/internal/run_history.h"

namespace dtrain::train {

/// Computes the loss and gradient norm above which a step is a spike: `threshold` standard
/// deviations above the mean of their logarithms. The first kWarmUpSteps steps are never spikes.
/// All ranks pass equal figures, so all decide alike.
///
/// The newest of n steps has weight 3 / (n + 2), and at least 1 / kWindow: early on, step k is
/// weighted by k (k + 1), so the fall of the norm at the start of a run does not widen the limits for
/// long. A spike enters the moments clipped to the limit that it exceeded: one spike hides no other,
/// while figures above the limit in more than 1/threshold² of all steps raise it: by Chebyshev's
/// inequality they belong to the distribution. After kNewLevelSteps in a row on one side of the
/// limits, their mean becomes the new level: a skipped update leaves the weights unchanged, so the
/// model has changed and not the batch. A figure of 0 has no logarithm and is ignored.
///
/// Source: z-scores over exponential moments (West, CACM 1979), of logarithms: the noise of a norm
///         is a factor, whose upper tail is long. Kumar et al., ZClip (2025), clips at such scores of
///         the norm itself; OLMo-core's SkipStepOptimizer skips at 6 deviations of a window of 128.
class SpikeDetector {
 public:
  static constexpr std::int64_t kWarmUpSteps = 50;
  static constexpr std::int64_t kWindow = 100;  ///< effective length of the moving average
  static constexpr std::int64_t kNewLevelSteps = 3;

  explicit SpikeDetector(double threshold, const SpikeStatistics& before = {})
      : threshold_(threshold), statistics_(before) {}

  /// Limits of the next step.
  [[nodiscard]] parallel::StepLimits limits() const;
  /// Adds the figures of that step, which must be finite.
  void note(double loss, double grad_norm);

  /// Discards the statistics and warms up again.
  void reset() { statistics_ = {}; }

  [[nodiscard]] const SpikeStatistics& statistics() const { return statistics_; }

 private:
  double threshold_;
  SpikeStatistics statistics_;
};

}  // namespace dtrain::train
