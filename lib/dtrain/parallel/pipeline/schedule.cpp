#include "dtrain/parallel/pipeline/schedule.h"

#include <fmt/format.h>

#include "dtrain/base/error.h"
#include "dtrain/parallel/pipeline/compute_order.h"

namespace dtrain::parallel {
namespace {

bool is_forward(const StageAction& pass) { return pass.kind == ActionKind::forward; }

}  // namespace

StageSchedule with_messages(const PipelineShape& shape, std::int64_t stage,
                            const StageSchedule& order) {
  StageSchedule schedule;
  const auto add = [&](const std::optional<StageAction>& message) {
    if (message) schedule.push_back(*message);
  };
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i == 0) add(receive_before(shape, stage, order[i]));
    if (i + 1 < order.size()) add(receive_before(shape, stage, order[i + 1]));
    schedule.push_back(order[i]);
    add(send_after(shape, stage, order[i]));
  }
  return schedule;
}

std::optional<StageAction> receive_before(const PipelineShape& shape, std::int64_t stage,
                                          const StageAction& pass) {
  const std::int64_t part = shape.part(stage, pass.chunk);
  if (is_forward(pass)) {
    if (part == 0) return std::nullopt;
    return StageAction{ActionKind::recv_activation, pass.chunk, pass.microbatch};
  }
  if (part == shape.num_parts() - 1) return std::nullopt;
  return StageAction{ActionKind::recv_gradient, pass.chunk, pass.microbatch};
}

std::optional<StageAction> send_after(const PipelineShape& shape, std::int64_t stage,
                                      const StageAction& pass) {
  const std::int64_t part = shape.part(stage, pass.chunk);
  if (is_forward(pass)) {
    if (part == shape.num_parts() - 1) return std::nullopt;
    return StageAction{ActionKind::send_activation, pass.chunk, pass.microbatch};
  }
  if (part == 0) return std::nullopt;
  return StageAction{ActionKind::send_gradient, pass.chunk, pass.microbatch};
}

Peer peer_of(const PipelineShape& shape, std::int64_t stage, const StageAction& message) {
  const bool is_behind =
      message.kind == ActionKind::send_activation || message.kind == ActionKind::recv_gradient;
  const std::int64_t part = shape.part(stage, message.chunk) + (is_behind ? 1 : -1);
  return {.stage = part % shape.stages, .chunk = part / shape.stages};
}

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
