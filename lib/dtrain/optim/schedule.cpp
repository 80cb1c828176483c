#include "dtrain/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "dtrain/base/check.h"

namespace dtrain::optim {

ScheduleShape schedule_shape(std::string_view name) {
  if (name == "constant") return ScheduleShape::constant;
  if (name == "linear") return ScheduleShape::linear;
  DTRAIN_CHECK(name == "cosine", "schedule '{}'", name);
  return ScheduleShape::cosine;
}

double Schedule::rate(std::int64_t step) const {
  if (step < warmup_steps) {
    return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  }
  const auto decay_steps =
      static_cast<double>(std::max<std::int64_t>(total_steps - warmup_steps, 1));
  const double progress = std::min(static_cast<double>(step - warmup_steps) / decay_steps, 1.0);
  switch (shape) {
    case ScheduleShape::constant:
      return peak;
    case ScheduleShape::linear:
      return peak + (minimum - peak) * progress;
    case ScheduleShape::cosine:
      return minimum + (peak - minimum) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
  }
  return peak;
}

}  // namespace dtrain::optim
