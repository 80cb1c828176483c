#include "dtrain/parallel/pipeline/schedule.h"

#include <fmt/format.h>

#include "dtrain/base/check.h"
#include "dtrain/parallel/pipeline/compute_order.h"
#include "dtrain/parallel/pipeline/messages.h"

namespace dtrain::parallel {

std::string describe(const StageAction& action) {
  const char* name = "";
  switch (action.kind) {
    case StageActionKind::forward:
      name = "forward";
      break;
    case StageActionKind::backward:
      name = "backward";
      break;
    case StageActionKind::send_activation:
      name = "send_activation";
      break;
    case StageActionKind::recv_activation:
      name = "recv_activation";
      break;
    case StageActionKind::send_gradient:
      name = "send_gradient";
      break;
    case StageActionKind::recv_gradient:
      name = "recv_gradient";
      break;
  }
  return fmt::format("{} of chunk {}, microbatch {}", name, action.chunk, action.microbatch);
}

std::vector<StageSchedule> make_pipeline_schedule(const PipelineShape& shape) {
  DTRAIN_CHECK(shape.stages > 0 && shape.microbatches > 0 && shape.chunks > 0,
               "{} stages, {} microbatches, {} chunks", shape.stages, shape.microbatches,
               shape.chunks);
  config::require_schedule_fits({.kind = shape.kind, .chunks = shape.chunks},
                                {.stages = shape.stages, .microbatches = shape.microbatches},
                                "--grad-accum");
  std::vector<StageSchedule> schedules;
  for (std::int64_t stage = 0; stage < shape.stages; ++stage) {
    schedules.push_back(with_messages(shape, stage, compute_order(shape, stage)));
  }
  return schedules;
}

}  // namespace dtrain::parallel
