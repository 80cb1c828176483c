#include "dtrain/optim/schedule.h"

#include <algorithm>
#include <numbers>

#include "dtrain/base/elementary.h"

namespace dtrain::optim {

double Schedule::rate(std::int64_t step) const {
  if (step < warmup_steps) {
    return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  }
  const bool has_plateau = shape == ScheduleShape::warmup_stable_decay;
  const std::int64_t falling = has_plateau ? decay_steps : total_steps - warmup_steps;
  const double progress = std::clamp(static_cast<double>(step - (total_steps - falling)) /
                                         static_cast<double>(std::max<std::int64_t>(falling, 1)),
                                     0.0, 1.0);
  switch (shape) {
    case ScheduleShape::constant:
      return peak;
    case ScheduleShape::linear:
    case ScheduleShape::warmup_stable_decay:
      return peak + (minimum - peak) * progress;
    case ScheduleShape::cosine:
      return minimum +
             (peak - minimum) * 0.5 * (1 + base::sine_cosine(std::numbers::pi * progress).cosine);
  }
  return peak;
}

Schedule schedule_of(const config::TrainConfig& train) {
  return {.shape = train.schedule,
          .peak = train.lr.value(),
          .minimum = train.min_lr.value_or(0),
          .warmup_steps = train.warmup_steps.value(),
          .decay_steps = train.decay_steps,
          .total_steps = train.steps};
}

}  // namespace dtrain::optim
