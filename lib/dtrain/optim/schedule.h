// Computes the learning rate of each step.
#pragma once

#include <cstdint>

#include "dtrain/config/config.h"

namespace dtrain::optim {

using config::ScheduleShape;

/// Linear warm-up over `warmup_steps`, then decay from `peak` to `minimum`, which is reached at
/// step `total_steps`. The shapes `linear` and `cosine` decay from the end of the warm-up;
/// `warmup_stable_decay` stays at the peak and decays linearly over the last `decay_steps` steps.
///
/// Source: Hu et al., MiniCPM (2024) for warmup_stable_decay. Differs: a linear decay.
struct Schedule {
  ScheduleShape shape = ScheduleShape::constant;
  double peak = 0;
  double minimum = 0;  ///< ignored by constant
  std::int64_t warmup_steps = 0;
  std::int64_t decay_steps = 0;  ///< used by warmup_stable_decay only
  std::int64_t total_steps = 0;

  /// Returns the learning rate of step `step`, counted from 0.
  [[nodiscard]] double rate(std::int64_t step) const;
};

/// Returns the schedule of a resolved configuration.
[[nodiscard]] Schedule schedule_of(const config::TrainConfig& train);

}  // namespace dtrain::optim
