// Follows a schedule without computing: whether it can be executed, whoever wrote it, what it keeps
// in memory, and when each pass begins and ends if passes take known times and messages none.
#pragma once

#include <cstdint>
#include <vector>

#include "dtrain/parallel/pipeline/schedule.h"

namespace dtrain::parallel {

/// Counts what a stage keeps for later backwards: activations of one microbatch in one chunk, run
/// forward and not yet back.
struct InFlight {
  std::int64_t activations = 0;        ///< of all chunks, at the peak
  std::vector<std::int64_t> by_chunk;  ///< each at its own peak
};

[[nodiscard]] InFlight in_flight(const PipelineShape& shape, const StageSchedule& schedule);

/// Every pass is there exactly once, each forward before its backward, and backwards of a chunk in
/// the order of their microbatches; every message is received before the pass that needs it and
/// sent after the pass that makes it; receives come in the order of the sends; and no stage waits
/// forever.
///
/// Returns what each stage keeps.
/// Throws:  Error{internal} naming the stage and the first action that is wrong.
std::vector<InFlight> check_pipeline_schedule(const PipelineShape& shape,
                                              const std::vector<StageSchedule>& schedules);

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
