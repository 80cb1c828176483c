#include "dtrain/train/step_clock.h"

#include <utility>

namespace dtrain::train {

StepClock::Lap StepClock::lap() {
  const auto now = base::Clock::now();
  const double seconds = base::Seconds(now - std::exchange(step_start_, now)).count();
  const comm::CallCounters counters = groups_.counters();
  const comm::CallCounters before = std::exchange(counters_, counters);
  return {.seconds = seconds,
          .wait_seconds = counters.wait_seconds - before.wait_seconds,
          .bytes_sent = counters.bytes_sent - before.bytes_sent,
          .total_wait_seconds = counters.wait_seconds};
}

void StepClock::restart() {
  counters_ = groups_.counters();
  step_start_ = base::Clock::now();
}

void StepClock::exclude_since(base::Clock::time_point begin) {
  counters_ = groups_.counters();
  exclude(base::Clock::now() - begin);
}

}  // namespace dtrain::train
