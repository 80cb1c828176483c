// Detects stragglers: ranks that the others keep waiting for.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/base/clock.h"
#include "launcher/local/rank.h"

namespace launcher {

/// Returns the median of `values`; for an even number, the larger of the two middle values.
///
/// Requires: at least one value.
template <typename Value>
[[nodiscard]] Value median(std::vector<Value> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Compares how long the ranks wait for each other. The straggler is the rank that waits least
/// while the others wait.
///
/// Threads: one.
class Stragglers {
 public:
  using Time = dtrain::base::Clock::time_point;

  /// Discards the samples of the previous attempt.
  void begin_attempt();

  /// Samples the ranks' steps and wait times, once a second at most. Call it at each heartbeat.
  ///
  /// Returns: once per job, a line about a rank that held up the others for more than a tenth of a
  /// step in at least half of a minute's samples; otherwise an empty string.
  [[nodiscard]] std::string sample(const std::vector<Rank>& ranks, Time now);

 private:
  struct Progress {
    std::int64_t step = -1;
    std::int64_t waited_us = 0;
  };
  struct Lateness {
    int samples = 0;        // in which it held up the others
    double seconds = 0;     // wait for it per step, summed over these samples
    double of_seconds = 0;  // step time, summed over these samples
  };

  void compare(const std::vector<Rank>& ranks, double elapsed);
  [[nodiscard]] std::string conclude(Time now);

  Time last_sample_;
  Time begin_;                           // of the samples that are compared
  std::vector<Progress> last_progress_;  // at the last sample
  std::vector<Lateness> late_;           // since `begin_`
  int samples_ = 0;
  bool has_reported_ = false;
};

}  // namespace launcher
