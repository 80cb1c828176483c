// Defines the actions of a step or evaluation; the executor runs lists of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "dtrain/data/batch.h"
#include "dtrain/model/block_range.h"

namespace dtrain::parallel {

using data::MicrobatchId;
using model::BlockId;

/// Kinds of actions. A stage schedule (StageAction) refers to chunks and has only passes and
/// messages; a rank's action list (Action) refers to blocks and has all kinds.
enum class ActionKind {
  forward,
  backward,
  send_activation,   ///< block or chunk output, to the next stage
  recv_activation,   ///< posts the receive of a block or chunk input
  send_gradient,     ///< gradient of a block or chunk input, to the previous stage
  recv_gradient,     ///< posts the receive of the gradient of a block or chunk output
  begin_microbatch,  ///< makes the microbatch's tokens available to the blocks
  end_microbatch,    ///< frees everything kept for the microbatch
  begin_gradients,   ///< begins gradient sum number `microbatch`
  end_gradients,     ///< adds that sum to the earlier sums; omitted for the step's last sum
  reduce_losses,     ///< starts the reduction of this rank's losses
};

/// "send activation"
[[nodiscard]] constexpr std::string_view name_of(ActionKind kind) {
  constexpr std::string_view kNames[] = {
      "forward",         "backward",         "send activation",  "receive activation",
      "send gradient",   "receive gradient", "begin microbatch", "end microbatch",
      "begin gradients", "end gradients",    "reduce losses"};
  return kNames[static_cast<std::size_t>(kind)];
}

/// True for forward and backward passes.
[[nodiscard]] constexpr bool is_compute(ActionKind kind) {
  return kind == ActionKind::forward || kind == ActionKind::backward;
}

/// One unit of work of a rank for one microbatch.
struct Action {
  ActionKind kind = ActionKind::forward;
  BlockId block = {};
  MicrobatchId microbatch = {};

  bool operator==(const Action&) const = default;
};

/// The action lists of one rank.
struct ActionLists {
  std::vector<Action> step;
  std::vector<Action> evaluation;  ///< one microbatch, forward only
};

/// Returns the passes of a rank that owns all blocks: for each microbatch, forward through all
/// blocks, then backward.
[[nodiscard]] std::vector<Action> sequential_actions(std::int64_t num_blocks,
                                                     std::int64_t num_microbatches);

/// Adds begin, end and reduce actions to a step's passes and messages. Each microbatch has its own
/// gradient sum, unless the backward passes of several microbatches alternate: then all share one
/// sum. Losses are reduced after the last forward pass, so the reduction overlaps the backward
/// passes.
[[nodiscard]] std::vector<Action> with_events(std::span<const Action> actions);

/// Returns the number of gradient sums in a step's list.
[[nodiscard]] std::int64_t num_gradient_sums(std::span<const Action> step);

}  // namespace dtrain::parallel
