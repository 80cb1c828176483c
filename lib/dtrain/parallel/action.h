// The actions of a step or an evaluation, as plain data: the executor works through lists of them.
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

/// "send activation"
[[nodiscard]] constexpr std::string_view name_of(ActionKind kind) {
  constexpr std::string_view kNames[] = {"forward",          "backward",
                                         "send activation",  "offer room for activation",
                                         "send gradient",    "offer room for gradient",
                                         "begin microbatch", "end microbatch",
                                         "begin gradients",  "end gradients",
                                         "reduce losses"};
  return kNames[static_cast<std::size_t>(kind)];
}

/// True where a block runs.
[[nodiscard]] constexpr bool is_compute(ActionKind kind) {
  return kind == ActionKind::forward || kind == ActionKind::backward;
}

/// One thing that a rank does for one microbatch.
struct Action {
  ActionKind kind = ActionKind::forward;
  BlockId block = {};
  MicrobatchId microbatch = {};

  bool operator==(const Action&) const = default;
};

/// All that one rank does.
struct ActionLists {
  std::vector<Action> step;
  std::vector<Action> evaluation;  ///< of one microbatch, forward alone
};

/// The passes of a rank that owns all blocks: each microbatch forward through all of them, then
/// backward.
[[nodiscard]] std::vector<Action> sequential_actions(std::int64_t num_blocks,
                                                     std::int64_t num_microbatches);

/// A step's passes and messages, with all that begins and ends between them. Each microbatch's
/// gradients are a sum of their own, unless the backward passes of several microbatches alternate:
/// then all are added as they come. Losses are reduced after the last forward, so that they travel
/// under the backward passes.
[[nodiscard]] std::vector<Action> with_events(std::span<const Action> actions);

/// Sums of gradients in a step's list.
[[nodiscard]] std::int64_t num_gradient_sums(std::span<const Action> step);

}  // namespace dtrain::parallel
