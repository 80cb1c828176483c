#include "dtrain/parallel/pipeline/schedule.h"

#include <fmt/format.h>

#include "dtrain/base/check.h"
#include "dtrain/parallel/pipeline/compute_order.h"
#include "dtrain/parallel/pipeline/messages.h"

namespace dtrain::parallel {

std::string describe(const StageAction& action) {
  return fmt::format("{} of chunk {}, microbatch {}", name_of(action.kind), action.chunk,
                     action.microbatch.value());
}

StageSchedule make_stage_schedule(const PipelineShape& shape, std::int64_t stage) {
  DTRAIN_CHECK(shape.stages > 0 && shape.microbatches > 0 && shape.chunks() > 0,
               "{} stages, {} microbatches, {} chunks", shape.stages, shape.microbatches,
               shape.chunks());
  config::require_schedule_fits(
      shape.order, {.stages = shape.stages, .microbatches = shape.microbatches}, "--grad-accum");
  return with_messages(shape, stage, compute_order(shape, stage));
}

std::vector<StageSchedule> make_pipeline_schedule(const PipelineShape& shape) {
  std::vector<StageSchedule> schedules;
  for (std::int64_t stage = 0; stage < shape.stages; ++stage) {
    schedules.push_back(make_stage_schedule(shape, stage));
  }
  return schedules;
}

}  // namespace dtrain::parallel
