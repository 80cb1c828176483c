// Notices ranks that the others keep waiting for.
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

/// The upper one of two in the middle.
///
/// Requires: at least one value.
template <typename Value>
[[nodiscard]] Value median(std::vector<Value> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Compares how long the ranks wait for each other. The rank that waits least, while the others
/// wait, is late.
///
/// Threads: one.
class Stragglers {
 public:
  using Time = dtrain::base::Clock::time_point;

  /// Another attempt to run the job begins.
  void begin_attempt();

  /// To be called at each sign of life; samples what the ranks said once a second.
  ///
  /// Returns: once per job, a line about a rank that was late by more than a tenth of a step in at
  /// least half of the samples of a minute; else nothing.
  [[nodiscard]] std::string look(const std::vector<Rank>& ranks, Time now);

 private:
  struct Account {
    std::int64_t step = -1;
    std::int64_t waited_us = 0;
  };
  struct Lateness {
    int samples = 0;        // in which it was late
    double seconds = 0;     // a step, over these samples
    double of_seconds = 0;  // a step took, over these samples
  };

  void compare(const std::vector<Rank>& ranks, double elapsed);
  [[nodiscard]] std::string conclude(Time now);

  Time last_sample_;
  Time begin_;                     // of the samples that are compared
  std::vector<Account> accounts_;  // at the last sample
  std::vector<Lateness> late_;     // since `begin_`
  int samples_ = 0;
  bool has_reported_ = false;
};

}  // namespace launcher
