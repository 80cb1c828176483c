// When and how a program says that it waits.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <utility>

#include "dtrain/base/clock.h"

namespace dtrain::base {

/// When to report a wait: at first after `first`, then after pauses that double up to a minute.
///
/// Threads: one.
class WaitingTimes {
 public:
  explicit WaitingTimes(std::chrono::seconds first = std::chrono::seconds(2)) : pause_(first) {}

  /// Returns whether it is time for a line, which sets the next time.
  [[nodiscard]] bool take() {
    if (Clock::now() < next_) return false;
    pause_ = std::min(2 * pause_, kLongest);
    next_ = Clock::now() + pause_;
    return true;
  }
  [[nodiscard]] Clock::time_point next() const { return next_; }
  /// Seconds since the wait began.
  [[nodiscard]] double waited() const { return seconds_since(start_); }

 private:
  static constexpr std::chrono::seconds kLongest{64};

  Clock::time_point start_ = Clock::now();
  std::chrono::seconds pause_;
  Clock::time_point next_ = start_ + pause_;
};

/// A rank's lines on standard error about whom it waits for.
///
/// Threads: one.
class WaitingLines {
 public:
  /// limit: of the wait. advice: ends the first line; empty: none.
  WaitingLines(std::chrono::milliseconds limit, std::string advice)
      : limit_(limit), advice_(std::move(advice)) {}

  /// Prints "waiting for WHOM, 2 s of 10 min (--comm-timeout)" if it is time for a line; `whom` is
  /// asked only then.
  void show(const std::function<std::string()>& whom);
  [[nodiscard]] Clock::time_point next() const { return times_.next(); }

 private:
  WaitingTimes times_;
  std::chrono::milliseconds limit_;
  std::string advice_;
};

}  // namespace dtrain::base
