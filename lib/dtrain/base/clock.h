// The one clock for durations.
#pragma once

#include <chrono>

namespace dtrain::base {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

[[nodiscard]] inline double seconds_since(Clock::time_point start) {
  return Seconds(Clock::now() - start).count();
}

}  // namespace dtrain::base
