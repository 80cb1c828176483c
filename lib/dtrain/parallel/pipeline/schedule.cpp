#include "dtrain/parallel/pipeline/schedule.h"

#include <fmt/format.h>

#include <algorithm>

#include "dtrain/base/error.h"

namespace dtrain::parallel {
namespace {

bool is_forward(const StageAction& pass) { return pass.kind == ActionKind::forward; }

// Adds messages to a stage's passes. Each message is sent right after the pass that made it. Its
// receive is posted one pass early, so the transfer overlaps the previous pass, and at most one
// activation and one gradient are buffered ahead.
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

// Chunk and microbatch of a stage's i-th forward or backward pass.
struct PassIndex {
  std::int64_t chunk = 0;
  MicrobatchId microbatch;
};

// Passes come in rounds of stages * chunks: a group of microbatches through the first chunk, then
// through the second, and so on. With one chunk, microbatches come in order.
PassIndex forward_index(const PipelineShape& shape, std::int64_t i) {
  if (shape.chunks() == 1) return {.microbatch = MicrobatchId(i)};
  const std::int64_t round = i / shape.num_parts();
  const std::int64_t within = i % shape.num_parts();
  return {.chunk = within / shape.stages,
          .microbatch = MicrobatchId(round * shape.stages + within % shape.stages)};
}

// As forward_index(), but the last chunk comes first.
PassIndex backward_index(const PipelineShape& shape, std::int64_t i) {
  PassIndex index = forward_index(shape, i);
  index.chunk = shape.chunks() - 1 - index.chunk;
  return index;
}

// Returns the number of forward passes before a stage alternates.
std::int64_t warm_up_length(const PipelineShape& shape, std::int64_t stage) {
  const std::int64_t later_stages = shape.stages - 1 - stage;
  switch (shape.order.kind) {
    case PipelineKind::gpipe:
      return shape.microbatches;
    case PipelineKind::one_f_one_b:
      return later_stages;
    case PipelineKind::interleaved:
      // A group passes through all chunks but the last before that chunk's first gradient exists.
      // As in Megatron, each later stage adds two forward passes: one would suffice if messages
      // took no time, the second hides their latency.
      return 2 * later_stages + (shape.chunks() - 1) * shape.stages;
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
  const bool is_next =
      message.kind == ActionKind::send_activation || message.kind == ActionKind::recv_gradient;
  const std::int64_t part = shape.part(stage, message.chunk) + (is_next ? 1 : -1);
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
    const PassIndex index = forward_index(shape, i);
    order.push_back({ActionKind::forward, index.chunk, index.microbatch});
  };
  const auto run_backward = [&](std::int64_t i) {
    const PassIndex index = backward_index(shape, i);
    order.push_back({ActionKind::backward, index.chunk, index.microbatch});
  };

  // Warm-up: fill the pipeline.
  for (std::int64_t i = 0; i < warm_up; ++i) run_forward(i);
  // Steady state: one forward, one backward.
  for (std::int64_t i = warm_up; i < total; ++i) {
    run_forward(i);
    run_backward(i - warm_up);
  }
  // Cool-down: drain the pipeline.
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
