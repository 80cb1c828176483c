// The one clock for durations and deadlines, and the time for which this process was stopped.
#pragma once

#include <algorithm>
#include <chrono>

namespace dtrain::base {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

[[nodiscard]] inline double seconds_since(Clock::time_point start) {
  return Seconds(Clock::now() - start).count();
}

/// Has suspended_time() count from now on, with a thread that ticks twice a second: it takes a pause
/// of more than a second for a stop. Where the system starts no thread, nothing is counted. Call
/// once.
void count_suspensions() noexcept;

/// How long this process was stopped, a stop under way included: by Ctrl-Z, SIGSTOP, a debugger, a
/// frozen control group, or a batch system that suspends jobs.
///
/// Threads: any.
[[nodiscard]] Clock::duration suspended_time() noexcept;

/// A limit on a whole operation, counted from construction, without the time for which this
/// process is stopped.
class Deadline {
 public:
  explicit Deadline(std::chrono::milliseconds limit)
      : limit_(limit), end_(Clock::now() - suspended_time() + limit) {}

  [[nodiscard]] std::chrono::milliseconds limit() const { return limit_; }
  [[nodiscard]] Clock::time_point end() const { return end_ + suspended_time(); }
  [[nodiscard]] bool passed() const {
    const auto now = Clock::now();  // before the end is known: a stop in between must not count
    return now >= end();
  }
  /// At least 1 ms: backends read 0 as "for ever".
  [[nodiscard]] std::chrono::milliseconds remaining() const {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end() - Clock::now());
    return std::max(left, std::chrono::milliseconds(1));
  }

 private:
  std::chrono::milliseconds limit_;
  Clock::time_point end_;  // if it is not stopped again
};

}  // namespace dtrain::base
