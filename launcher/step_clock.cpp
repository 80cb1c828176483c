#include "launcher/step_clock.h"

#include <utility>

namespace launcher {

void StepClock::begin_attempt() {
  last_.reset();
  recovery_.reset();
}

bool StepClock::report(std::int64_t step, Time now) {
  if (step < 0 || (last_ && step <= last_->step)) return false;
  const bool is_new = step > highest_;
  const bool recovers = is_new && failed_;
  if (recovers) recovery_ = now - *std::exchange(failed_, std::nullopt);
  if (is_new && last_ && last_->step >= highest_) useful_ += now - last_->time;
  if (is_new) highest_ = step;
  last_ = Report{step, now};
  return recovers;
}

void StepClock::fail(Time when) {
  if (!failed_) failed_ = when;
}

}  // namespace launcher
