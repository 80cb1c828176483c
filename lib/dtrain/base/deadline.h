// The moment by which an operation must end.
#pragma once

#include <algorithm>
#include <chrono>

#include "dtrain/base/clock.h"
#include "dtrain/base/suspension.h"

namespace dtrain::base {

/// A limit on a whole operation, counted from construction, without the time for which this
/// process is stopped (suspension.h).
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
