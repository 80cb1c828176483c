// What a step consists of: the engine executes a list of these, whatever wrote it.
#pragma once

#include <cstdint>
#include <vector>

namespace dtrain::parallel {

enum class ActionKind {
  forward,
  backward,
  send_activation,  ///< the output of `block`, to the next stage
  recv_activation,  ///< the input of `block`: room for it is offered to the stage before
  send_gradient,    ///< of the input of `block`, to the stage before
  recv_gradient,    ///< of the output of `block`: room for it is offered to the next stage
};

/// Whether a block runs; else something passes between the stages of a pipeline.
[[nodiscard]] constexpr bool is_compute(ActionKind kind) {
  return kind == ActionKind::forward || kind == ActionKind::backward;
}

/// One thing that a rank does for one microbatch. Blocks are numbered among the rank's own.
struct Action {
  ActionKind kind = ActionKind::forward;
  std::int64_t block = 0;
  std::int64_t microbatch = 0;

  bool operator==(const Action&) const = default;
};

/// The list of a rank that owns all blocks: each microbatch forward through all of them, then
/// backward.
[[nodiscard]] std::vector<Action> sequential_actions(std::int64_t num_blocks,
                                                     std::int64_t num_microbatches);

}  // namespace dtrain::parallel
