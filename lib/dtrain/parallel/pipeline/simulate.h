// When each pass of a schedule begins and ends, if passes take known times and messages none.
#pragma once

#include <vector>

#include "dtrain/parallel/pipeline/schedule.h"

namespace dtrain::parallel {

/// Durations of one microbatch's passes through one chunk; all chunks take equally long.
///
/// Units: any, the same for both.
struct PassDurations {
  double forward = 1;
  double backward = 2;  ///< the gradients of input and weights: two products for each one forward
};

struct TimedPass {
  StageAction action;
  double begin = 0;
  double end = 0;
};

struct Simulation {
  std::vector<std::vector<TimedPass>> stages;
  double duration = 0;
  /// The time in which a stage computes nothing, over the time in which it computes: the mean of
  /// all stages. (S - 1) / M for gpipe and 1f1b with S stages and M microbatches, and
  /// (S - 1) / (V * M) for interleaved:V.
  double bubble = 0;
};

/// Executes the lists of all stages: a send does not block, a pass waits for the message that it
/// needs.
///
/// Throws: Error{internal} naming what each stage waits for, where none of them can go on.
[[nodiscard]] Simulation simulate(const PipelineShape& shape,
                                  const std::vector<StageSchedule>& schedules,
                                  const PassDurations& durations = {});

}  // namespace dtrain::parallel
