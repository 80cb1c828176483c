// Detects steps whose loss or gradient norm is far above that of earlier steps.
#pragma once

#include <cstdint>

#include "dtrain/parallel/engine/step_engine.h"
#include "dtrain/train/internal/run_history.h"

namespace dtrain::train {

/// Computes the loss and gradient norm above which a step is a spike: `threshold` standard
/// deviations above the mean of their logarithms. The first kWarmUpSteps steps are never spikes.
/// All ranks pass equal values, so all decide alike.
///
/// Weights: after n steps, the latest step has weight 3 / (n + 2), but at least 1 / kWindow. In the
/// first steps this weights step k by k (k + 1), so the norm's initial fall affects the limits only
/// briefly.
///
/// Spikes: a spike is clipped to the limit that it exceeds before it is added to the moments, so
/// that it does not hide the next spike. If more than 1/threshold² of all steps exceed the limit,
/// the limit rises: by Chebyshev's inequality, such values belong to the distribution.
///
/// Level shifts: after kNewLevelSteps consecutive steps outside the limits on the same side, their
/// mean becomes the new level. Skipped updates leave the weights unchanged, so repeated spikes mean
/// that the model has changed, not that the batch is an outlier.
///
/// A value of 0 has no logarithm and is ignored.
///
/// Source: z-scores over exponential moments (West, CACM 1979). Differs: uses logarithms, because a
///         norm's noise is multiplicative with a long upper tail. Related: ZClip (Kumar et al.,
///         2025) clips by z-scores of the norm; OLMo-core's SkipStepOptimizer skips at 6 standard
///         deviations over a window of 128.
class SpikeDetector {
 public:
  static constexpr std::int64_t kWarmUpSteps = 50;
  static constexpr std::int64_t kWindow = 100;  ///< effective length of the moving average
  static constexpr std::int64_t kNewLevelSteps = 3;

  explicit SpikeDetector(double threshold, const SpikeStatistics& before = {})
      : threshold_(threshold), statistics_(before) {}

  /// Limits of the next step.
  [[nodiscard]] parallel::StepLimits limits() const;
  /// Adds the values of that step, which must be finite.
  void note(double loss, double grad_norm);

  /// Discards the statistics and warms up again.
  void reset() { statistics_ = {}; }

  [[nodiscard]] const SpikeStatistics& statistics() const { return statistics_; }

 private:
  double threshold_;
  SpikeStatistics statistics_;
};

}  // namespace dtrain::train
