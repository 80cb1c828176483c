#include "dtrain/parallel/pipeline/compute_order.h"

#include <algorithm>

namespace dtrain::parallel {
namespace {

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

}  // namespace dtrain::parallel
