// Measures and reports the steps of a launch: time, memory, communication, losses.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "dtrain/base/clock.h"
#include "dtrain/metrics/peak_flops.h"
#include "dtrain/train/internal/train_context.h"

namespace dtrain::train {

/// Losses and times of the last 50 steps.
///
/// Threads: one.
class RecentSteps {
 public:
  struct Step {
    std::int64_t step = 0;
    double loss = 0;  ///< may not be finite
    double seconds = 0;
  };

  void note(const Step& step);

  /// The mean of the finite losses; empty if there are none.
  [[nodiscard]] std::optional<metrics::MeanLoss> loss() const;
  /// The median; empty before the first step.
  [[nodiscard]] std::optional<double> seconds() const;
  /// The number of remembered steps.
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(steps_.size()); }

 private:
  std::deque<Step> steps_;
};

/// Adds its lifetime to `seconds`.
class ScopedTimer {
 public:
  explicit ScopedTimer(double& seconds) : seconds_(seconds) {}
  ScopedTimer(const ScopedTimer&) = delete;
  ScopedTimer& operator=(const ScopedTimer&) = delete;
  ~ScopedTimer() { seconds_ += base::seconds_since(begin_); }

 private:
  double& seconds_;
  base::Clock::time_point begin_ = base::Clock::now();
};

/// Reports each step and sums up the launch.
///
/// Threads: one.
class StepMetrics {
 public:
  /// start_tokens: tokens consumed before this launch. `context` must outlive this.
  StepMetrics(const TrainContext& context, std::int64_t start_tokens);

  /// Starts the clocks and resets the memory peak; excludes everything before this call.
  void begin();

  struct StepDone {
    std::int64_t step = 0;
    double learning_rate = 0;
    std::int64_t samples = 0;  ///< consumed so far
  };
  /// Reports a step. If PeakFlops::is_due, also measures the machine's peak FLOP/s again.
  ///
  /// Collective: in steps that measure, so that all ranks measure at the same time.
  void finish_step(const StepDone& done, const parallel::StepResult& result);

  /// Call before and after work that the memory prediction does not cover, to exclude it from the
  /// memory peak and from the time of the next step.
  void begin_unpredicted() { peak_before_ = peak_memory(); }
  void end_unpredicted();

  /// The time by activity so far; summary() sets TimeBreakdown::total.
  [[nodiscard]] metrics::TimeBreakdown& spent() { return spent_; }
  [[nodiscard]] std::int64_t tokens() const { return tokens_; }  ///< consumed so far
  /// Steps of this launch.
  [[nodiscard]] std::int64_t steps_done() const { return steps_done_; }
  /// The measured results of a run that ends after `step`.
  [[nodiscard]] metrics::RunSummary summary(std::int64_t step);

 private:
  void report(const StepDone& done, const parallel::StepResult& result);
  [[nodiscard]] std::int64_t peak_memory() const;

  const TrainContext& context_;
  std::int64_t start_tokens_;
  std::int64_t tokens_;
  std::int64_t steps_done_ = 0;
  metrics::PeakFlops peak_flops_;
  std::int64_t peak_before_ = 0;  // bytes, at the last begin_unpredicted()
  base::Clock::time_point start_;
  RecentSteps recent_;
  metrics::TimeBreakdown spent_;
};

}  // namespace dtrain::train
