#include "launcher/step_clock.h"

namespace launcher {

void StepClock::begin_attempt() {
  last_.reset();
  recovery_.reset();
}

void StepClock::report(std::int64_t step, Time now) {
  if (step < 0 || (last_ && step <= last_->step)) return;
  if (step > highest_) {
    if (last_ && last_->step >= highest_) useful_ += now - last_->time;
    if (failed_) recovery_ = now - *failed_;
    failed_.reset();
    highest_ = step;
  }
  last_ = Report{step, now};
}

void StepClock::fail(Time when) {
  if (!failed_) failed_ = when;
}

}  // namespace launcher
