// Losses and times of a run's last steps, for its summary.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "dtrain/metrics/reporter.h"

namespace dtrain::train {

/// Remembers 50 steps.
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

}  // namespace dtrain::train
