// Finds steps whose loss or gradient norm is far above those of the steps before.
#pragma once

#include <cstdint>

#include "dtrain/parallel/engine/step_engine.h"
#include "dtrain/train/internal/run_history.h"

namespace dtrain::train {

/// Computes the loss and gradient norm beyond which a step is a spike: `threshold` standard
/// deviations above the mean of their logarithms. The first kWarmUpSteps steps are never spikes.
/// All ranks give it equal figures, so all decide alike.
///
/// The newest of n steps has weight 3 / (n + 2), and at least 1 / kWindow: at first step k counts with
/// k (k + 1), so the fall of the norm at the start of a run does not widen the limits for long.
/// A spike enters the moments as the limit that it passed: one spike hides no other, while figures
/// beyond the limit in more than 1/threshold² of all steps raise it, as by Chebyshev's inequality
/// they are part of the distribution. After kNewLevelSteps in a row on one side their mean is the
/// new level: a skipped update leaves the weights as they are, so then it is the model that has
/// changed and not the batch. A figure of 0 has no logarithm and is left out.
///
/// Source: z-scores over exponential moments (West, CACM 1979), of logarithms: the noise of a norm
///         is a factor, whose upper tail is long. Kumar et al., ZClip (2025), clips at such scores of
///         the norm itself; OLMo-core's SkipStepOptimizer skips at 6 deviations of a window of 128.
class SpikeGuard {
 public:
  static constexpr std::int64_t kWarmUpSteps = 50;
  static constexpr std::int64_t kWindow = 100;  ///< steps that the moments reach back, about
  static constexpr std::int64_t kNewLevelSteps = 3;

  explicit SpikeGuard(double threshold, const SpikeStatistics& before = {})
      : threshold_(threshold), statistics_(before) {}

  /// Of the next step.
  [[nodiscard]] parallel::StepLimits limits() const;
  /// Takes the figures of that step, which are finite.
  void note(double loss, double grad_norm);

  /// Starts anew, warm-up included.
  void forget() { statistics_ = {}; }

  [[nodiscard]] const SpikeStatistics& statistics() const { return statistics_; }

 private:
  double threshold_;
  SpikeStatistics statistics_;
};

}  // namespace dtrain::train
