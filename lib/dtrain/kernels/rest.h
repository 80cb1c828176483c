// When a thread that has no core to itself is left out of work.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "dtrain/base/clock.h"

namespace dtrain::kernels {

/// Leaves a thread out for a while after it had no processor in the middle of its work, and for
/// longer each time: where another process has the thread's core, all others wait at the end of the
/// work for as long as the kernel lets that process run, which is more than the thread is good for.
///
/// Threads: one reports, another may ask.
class Rest {
 public:
  /// lost: how long the thread had no processor; of: how long its work took.
  void report(std::chrono::nanoseconds lost, std::chrono::nanoseconds of) {
    const bool is_disturbed = lost > kNoticed && lost * 4 > of;
    if (!is_disturbed) {
      if (++calm_ > kCalm) pause_ = kShortest;
      return;
    }
    calm_ = 0;
    end_.store(base::Clock::now() + pause_, std::memory_order_relaxed);
    pause_ = std::min<std::chrono::nanoseconds>(2 * pause_, kLongest);
  }

  [[nodiscard]] bool is_over() const {
    const auto end = end_.load(std::memory_order_relaxed);
    return end == base::Clock::time_point{} || base::Clock::now() >= end;
  }

  static constexpr std::chrono::milliseconds kShortest{20};
  static constexpr std::chrono::milliseconds kLongest{640};

 private:
  static constexpr std::chrono::microseconds kNoticed{200};
  static constexpr std::int64_t kCalm = 1000;  // pieces of work without a disturbance

  std::atomic<base::Clock::time_point> end_{};
  std::chrono::nanoseconds pause_ = kShortest;
  std::int64_t calm_ = 0;
};

}  // namespace dtrain::kernels
