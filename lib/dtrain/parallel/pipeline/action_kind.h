// The kinds of actions in a stage's list and in a rank's.
#pragma once

namespace dtrain::parallel {

/// A stage's schedule counts chunks, and has passes and messages alone; a rank's list (Action)
/// counts blocks.
enum class ActionKind {
  forward,
  backward,
  send_activation,  ///< the output of a block or chunk, to the next stage
  recv_activation,  ///< the input of a block or chunk: room for it is offered to the stage before
  send_gradient,    ///< of the input of a block or chunk, to the stage before
  recv_gradient,    ///< of the output of a block or chunk: room for it is offered to the next stage
  begin_microbatch,  ///< its tokens are there for the blocks
  end_microbatch,    ///< nothing of it is kept any longer
  begin_gradients,   ///< a sum of gradients, of number `microbatch`, begins
  end_gradients,     ///< that sum is added to those before it; not for a step's last one
  reduce_losses,     ///< this rank's losses are there
};

/// True where a block runs.
[[nodiscard]] constexpr bool is_compute(ActionKind kind) {
  return kind == ActionKind::forward || kind == ActionKind::backward;
}

}  // namespace dtrain::parallel
