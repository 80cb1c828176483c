// The learning rate as a function of the step.
#pragma once

#include <cstdint>
#include <string_view>

namespace dtrain::optim {

enum class ScheduleShape { constant, linear, cosine };

/// "constant" | "linear" | "cosine".
[[nodiscard]] ScheduleShape schedule_shape(std::string_view name);

/// Linear warm-up over `warmup_steps`, then `shape` from `peak` to `minimum`, reached at step
/// `total_steps`.
struct Schedule {
  ScheduleShape shape = ScheduleShape::constant;
  double peak = 0;
  double minimum = 0;  ///< not used by constant
  std::int64_t warmup_steps = 0;
  std::int64_t total_steps = 0;

  /// The rate of the update that turns state `step` into state step + 1; step counts from 0.
  [[nodiscard]] double rate(std::int64_t step) const;
};

}  // namespace dtrain::optim
