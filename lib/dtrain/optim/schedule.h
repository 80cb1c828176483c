// The learning rate as a function of the step.
#pragma once

#include <cstdint>

#include "dtrain/config/config.h"

namespace dtrain::optim {

using config::ScheduleShape;

/// Linear warm-up over `warmup_steps`, then `shape` from `peak` to `minimum`, reached at step
/// `total_steps`. linear and cosine begin to fall after the warm-up; warmup_stable_decay stays at
/// the peak until `decay_steps` steps are left, over which it falls linearly.
///
/// Source: Hu et al., MiniCPM (2024) for warmup_stable_decay. Differs: a linear decay.
struct Schedule {
  ScheduleShape shape = ScheduleShape::constant;
  double peak = 0;
  double minimum = 0;  ///< not used by constant
  std::int64_t warmup_steps = 0;
  std::int64_t decay_steps = 0;  ///< used by warmup_stable_decay alone
  std::int64_t total_steps = 0;

  /// The rate of the update that turns state `step` into state step + 1; step counts from 0.
  [[nodiscard]] double rate(std::int64_t step) const;
};

/// The schedule of a resolved configuration.
[[nodiscard]] Schedule schedule_of(const config::TrainConfig& train);

}  // namespace dtrain::optim
