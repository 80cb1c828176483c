// Time in which this process ran.
#pragma once

#include <chrono>

#include "dtrain/base/clock.h"

namespace launcher {

/// A clock without the time in which this process was stopped (SIGSTOP, a suspended job), so that
/// limits on others do not count it. It takes a pause of more than two seconds between two calls of
/// now() for a stop: call it at least once a second.
///
/// Threads: one.
class ActiveClock {
 public:
  using Time = dtrain::base::Clock::time_point;
  static constexpr std::chrono::seconds kMostBetweenCalls{1};

  Time now() {
    const Time time = dtrain::base::Clock::now();
    if (time - last_ > kLeastStop) stopped_ += time - last_;
    last_ = time;
    return time - stopped_;
  }
  /// The moment of dtrain::base::Clock at which this clock shows `time` unless the process stops.
  [[nodiscard]] Time on_wall(Time time) const { return time + stopped_; }

 private:
  static constexpr std::chrono::seconds kLeastStop{2};

  Time last_ = dtrain::base::Clock::now();
  dtrain::base::Clock::duration stopped_{0};
};

}  // namespace launcher
