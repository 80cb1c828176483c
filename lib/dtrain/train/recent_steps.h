// Losses and times of a run's last steps, for its summary.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>

namespace dtrain::train {

/// Remembers 50 steps.
///
/// Threads: one.
class RecentSteps {
 public:
  struct Step {
    double loss = 0;     ///< may be no number
    double seconds = 0;  ///< of the whole step
  };

  void note(const Step& step);

  /// The mean of the losses that are finite; none without any.
  [[nodiscard]] std::optional<double> loss() const;
  /// The median; none before the first step.
  [[nodiscard]] std::optional<double> seconds() const;

 private:
  std::deque<double> losses_;
  std::deque<double> seconds_;
};

}  // namespace dtrain::train
