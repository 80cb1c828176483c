// Validates pipeline schedules, counts activations in flight, and simulates pass times, assuming
// that messages take no time.
#pragma once

#include <cstdint>
#include <vector>

#include "dtrain/parallel/pipeline/schedule.h"

namespace dtrain::parallel {

/// Peak number of activations in flight on a stage. An activation belongs to one microbatch in one
/// chunk, and is in flight between the forward and the backward pass.
struct InFlight {
  std::int64_t activations = 0;        ///< peak over all chunks together
  std::vector<std::int64_t> by_chunk;  ///< peak of each chunk
};

[[nodiscard]] InFlight in_flight(const PipelineShape& shape, const StageSchedule& schedule);

/// Checks that every pass occurs exactly once, forward before backward, and backward passes of a
/// chunk in microbatch order; that receives precede the pass that needs them, and sends follow the
/// pass that makes them; that receives are in the order of sends; and that no stage deadlocks.
///
/// Returns: activations in flight by stage.
/// Throws:  Error{internal} naming the stage and the first wrong action.
std::vector<InFlight> check_pipeline_schedule(const PipelineShape& shape,
                                              const std::vector<StageSchedule>& schedules);

/// Durations of one microbatch's passes through one chunk, equal for all chunks.
///
/// Units: any, the same for both.
struct PassDurations {
  double forward = 1;
  double backward = 2;  ///< per forward product, two: for the input and the weight gradient
};

struct TimedPass {
  StageAction action;
  double begin = 0;
  double end = 0;
};

struct Simulation {
  std::vector<std::vector<TimedPass>> stages;
  double duration = 0;
  /// Idle time over busy time of a stage, averaged over stages: (S - 1) / M for gpipe and 1f1b with
  /// S stages and M microbatches, (S - 1) / (V * M) for interleaved:V.
  double bubble = 0;
};

/// Simulates the schedules of all stages. Sends do not block; a pass waits for the message it
/// needs.
///
/// Throws: Error{internal} on deadlock, naming the action that each stage is blocked at.
[[nodiscard]] Simulation simulate(const PipelineShape& shape,
                                  const std::vector<StageSchedule>& schedules,
                                  const PassDurations& durations = {});

}  // namespace dtrain::parallel
