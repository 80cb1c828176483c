// That a schedule can be executed, whoever wrote it, and what it keeps in memory.
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

}  // namespace dtrain::parallel
