// Finds losses and gradient norms far above those of the steps before.
#pragma once

#include <cstdint>
#include <string>

#include "dtrain/parallel/engine/step_engine.h"

namespace dtrain::train {

/// Mean and variance of a figure, in which older steps count less and less.
struct Moments {
  double mean = 0;
  double variance = 0;

  bool operator==(const Moments&) const = default;
};

/// What a guard knows of the steps before.
struct SpikeStatistics {
  std::int64_t num_steps = 0;
  Moments loss = {};
  Moments grad_norm = {};

  bool operator==(const SpikeStatistics&) const = default;
};

/// Computes the loss and gradient norm beyond which a step is a spike: `threshold` standard
/// deviations above their means. The first kWarmUpSteps steps are never spikes. All ranks give it
/// equal figures, so all decide alike.
///
/// Source: z-scores over exponential moments (West, CACM 1979); a spike enters them as the limit
///         that it passed, so that one spike hides no other, and a lasting change of level is
///         taken for the new one after some steps.
class SpikeGuard {
 public:
  static constexpr std::int64_t kWarmUpSteps = 50;
  static constexpr std::int64_t kWindow = 100;  ///< steps that the moments reach back, about

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

/// "loss 9.1 is above 3.4, gradient norm ..."; empty: neither is beyond the limits.
[[nodiscard]] std::string describe_spike(const parallel::StepResult& result,
                                         const parallel::StepLimits& limits);

}  // namespace dtrain::train
