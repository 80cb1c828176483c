// The moment by which an operation must end.
#pragma once

#include <algorithm>
#include <chrono>

#include "dtrain/base/clock.h"

namespace dtrain::base {

/// A limit on a whole operation, counted from construction.
class Deadline {
 public:
  explicit Deadline(std::chrono::milliseconds limit) : limit_(limit), end_(Clock::now() + limit) {}

  [[nodiscard]] std::chrono::milliseconds limit() const { return limit_; }
  [[nodiscard]] Clock::time_point end() const { return end_; }
  [[nodiscard]] bool passed() const { return Clock::now() >= end_; }
  /// At least 1 ms: backends read 0 as "for ever".
  [[nodiscard]] std::chrono::milliseconds remaining() const {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end_ - Clock::now());
    return std::max(left, std::chrono::milliseconds(1));
  }

 private:
  std::chrono::milliseconds limit_;
  Clock::time_point end_;
};

}  // namespace dtrain::base
