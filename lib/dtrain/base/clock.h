// Measures durations and deadlines; deadlines do not count time in which the process is suspended.
#pragma once

#include <algorithm>
#include <chrono>

namespace dtrain::base {

/// The monotonic clock of all durations and deadlines.
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

[[nodiscard]] inline double seconds_since(Clock::time_point start) {
  return Seconds(Clock::now() - start).count();
}

/// Starts the thread that measures suspended_time(). It wakes twice a second and counts a gap of
/// more than one second as a suspension. If the thread cannot be started, suspended_time() stays 0.
/// Call once.
void count_suspensions() noexcept;

/// Total time for which this process was suspended, including a current suspension: by Ctrl-Z,
/// SIGSTOP, a debugger, a frozen control group, or a batch system.
///
/// Threads: any.
[[nodiscard]] Clock::duration suspended_time() noexcept;

/// The deadline of an operation: `limit` after construction, not counting suspended_time().
class Deadline {
 public:
  explicit Deadline(std::chrono::milliseconds limit)
      : limit_(limit), end_(Clock::now() - suspended_time() + limit) {}

  [[nodiscard]] std::chrono::milliseconds limit() const { return limit_; }
  [[nodiscard]] Clock::time_point end() const { return end_ + suspended_time(); }
  [[nodiscard]] bool passed() const {
    const auto now = Clock::now();  // read before end(): a suspension in between must not count
    return now >= end();
  }
  /// At least 1 ms, because backends take 0 as infinite.
  [[nodiscard]] std::chrono::milliseconds remaining() const {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end() - Clock::now());
    return std::max(left, std::chrono::milliseconds(1));
  }

 private:
  std::chrono::milliseconds limit_;
  Clock::time_point end_;  // excludes later suspensions
};

}  // namespace dtrain::base
