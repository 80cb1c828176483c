// Measures a run's steps and reports them.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "dtrain/base/clock.h"
#include "dtrain/metrics/peak_flops.h"
#include "dtrain/train/internal/train_parts.h"

namespace dtrain::train {

/// Remembers losses and times of the last 50 steps.
///
/// Threads: one.
class RecentSteps {
 public:
  struct Step {
    std::int64_t step = 0;
    double loss = 0;     ///< may be no number
    double seconds = 0;  ///< of the whole step
  };

  void note(const Step& step);

  /// None without a loss that is finite.
  [[nodiscard]] std::optional<metrics::MeanLoss> loss() const;
  /// The median; none before the first step.
  [[nodiscard]] std::optional<double> seconds() const;
  /// Steps behind both.
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(steps_.size()); }

 private:
  std::deque<Step> steps_;
};

/// Adds the time for which it lives to `seconds`.
class Timed {
 public:
  explicit Timed(double& seconds) : seconds_(seconds) {}
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;
  ~Timed() { seconds_ += base::seconds_since(begin_); }

 private:
  double& seconds_;
  base::Clock::time_point begin_ = base::Clock::now();
};

/// Time, memory and communication of steps, from begin() on.
///
/// Threads: one.
class RunMeter {
 public:
  /// start_tokens: consumed before. `parts` must outlive this.
  RunMeter(const TrainParts& parts, std::int64_t start_tokens);

  /// Starts the clocks: what was needed so far is over.
  void begin();

  /// What a step was made with.
  struct StepDone {
    std::int64_t step = 0;
    double learning_rate = 0;
    std::int64_t samples = 0;  ///< consumed so far
  };
  /// Reports a step, and after some of them measures the machine's peak speed again.
  ///
  /// Collective where it measures: on all ranks at once, after a common step.
  void finish_step(const StepDone& done, const parallel::StepResult& result);

  /// What has passed since the last step is no part of the next one.
  void restart_step();
  /// Nor is what has passed since `begin`.
  void exclude_since(base::Clock::time_point begin);
  /// Around what the memory prediction does not know: restarts the peak, and the step.
  void begin_unpredicted() { peak_before_ = peak_memory(); }
  void end_unpredicted();

  /// Where the run's time goes; its total is set by summary().
  [[nodiscard]] metrics::TimeBreakdown& spent() { return spent_; }
  [[nodiscard]] std::int64_t tokens() const { return tokens_; }  ///< consumed so far
  /// Since this start.
  [[nodiscard]] std::int64_t steps_done() const { return steps_done_; }
  /// Of a run that ends after `step`, as far as it was measured here.
  [[nodiscard]] metrics::RunSummary summary(std::int64_t step);

 private:
  void report(const StepDone& done, const parallel::StepResult& result);
  [[nodiscard]] std::int64_t peak_memory() const;

  const TrainParts& parts_;
  std::int64_t start_tokens_;
  std::int64_t tokens_;
  std::int64_t steps_done_ = 0;
  metrics::PeakFlops peak_;
  std::int64_t peak_before_ = 0;  // bytes, at the last begin_unpredicted()
  base::Clock::time_point start_;
  base::Clock::time_point step_start_;
  comm::CallCounters counters_;  // of all groups, at the last report
  RecentSteps recent_;
  metrics::TimeBreakdown spent_;
};

}  // namespace dtrain::train
