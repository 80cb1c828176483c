#include "dtrain/parallel/pipeline/schedule.h"

#include <fmt/format.h>

#include <algorithm>

#include "dtrain/base/error.h"

namespace dtrain::parallel {
namespace {

bool is_forward(const StageAction& pass) { return pass.kind == ActionKind::forward; }

// A stage's list, from the order of its passes. Each message is sent right after the pass that
// made it. Its receive is posted one pass early: the message travels while the pass before the one
// that needs it computes, and no more than one activation and one gradient wait ahead of time.
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

// The chunk and microbatch of a stage's i-th pass in one direction.
struct Turn {
  std::int64_t chunk = 0;
  MicrobatchId microbatch;
};

// Rounds of stages * chunks passes: a group of microbatches through the first chunk, then the same
// group through the second, and so on. With one chunk these are the microbatches in order.
Turn forward_turn(const PipelineShape& shape, std::int64_t i) {
  if (shape.chunks() == 1) return {.microbatch = MicrobatchId(i)};
  const std::int64_t round = i / shape.num_parts();
  const std::int64_t within = i % shape.num_parts();
  return {.chunk = within / shape.stages,
          .microbatch = MicrobatchId(round * shape.stages + within % shape.stages)};
}

// The same, but gradients arrive at the last chunk first.
Turn backward_turn(const PipelineShape& shape, std::int64_t i) {
  Turn turn = forward_turn(shape, i);
  turn.chunk = shape.chunks() - 1 - turn.chunk;
  return turn;
}

// How many forwards a stage runs before it begins to alternate.
std::int64_t warm_up_length(const PipelineShape& shape, std::int64_t stage) {
  const std::int64_t stages_behind = shape.stages - 1 - stage;
  switch (shape.order.kind) {
    case PipelineKind::gpipe:
      return shape.microbatches;
    case PipelineKind::one_f_one_b:
      return stages_behind;
    case PipelineKind::interleaved:
      // A group has to pass through all chunks but the last before that one's first gradient can
      // exist. For each stage behind Megatron runs two forwards more: one would do if messages took
      // no time, the other is the time in which they travel.
      return 2 * stages_behind + (shape.chunks() - 1) * shape.stages;
  }
  return 0;
}

}  // namespace

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

StageSchedule compute_order(const PipelineShape& shape, std::int64_t stage) {
  const std::int64_t total = shape.microbatches * shape.chunks();  // passes in each direction
  const std::int64_t warm_up = std::min(warm_up_length(shape, stage), total);
  StageSchedule order;
  const auto run_forward = [&](std::int64_t i) {
    const Turn turn = forward_turn(shape, i);
    order.push_back({ActionKind::forward, turn.chunk, turn.microbatch});
  };
  const auto run_backward = [&](std::int64_t i) {
    const Turn turn = backward_turn(shape, i);
    order.push_back({ActionKind::backward, turn.chunk, turn.microbatch});
  };

  // Warm-up: fill the pipeline.
  for (std::int64_t i = 0; i < warm_up; ++i) run_forward(i);
  // Steady: one forward, one backward.
  for (std::int64_t i = warm_up; i < total; ++i) {
    run_forward(i);
    run_backward(i - warm_up);
  }
  // Cool-down: empty it.
  for (std::int64_t i = total - warm_up; i < total; ++i) run_backward(i);
  return order;
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
