#include "dtrain/parallel/action.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

namespace dtrain::parallel {
namespace {

bool is_backward(const Action& action) { return action.kind == ActionKind::backward; }

// True if the backward passes of several microbatches alternate.
bool interleaves_microbatches(std::span<const Action> actions) {
  std::set<MicrobatchId> begun;
  std::optional<MicrobatchId> current;
  for (const Action& action : actions) {
    if (!is_backward(action) || action.microbatch == current) continue;
    current = action.microbatch;
    if (!begun.insert(action.microbatch).second) return true;
  }
  return false;
}

// First and last position in a list.
struct Extent {
  std::size_t first = 0;
  std::size_t last = 0;
};
using Extents = std::map<MicrobatchId, Extent>;

void extend(Extents& extents, MicrobatchId microbatch, std::size_t position) {
  extents.try_emplace(microbatch, Extent{position, position}).first->second.last = position;
}

}  // namespace

std::vector<Action> sequential_actions(std::int64_t num_blocks, std::int64_t num_microbatches) {
  std::vector<Action> actions;
  for (const auto microbatch : base::first_ids<MicrobatchId>(num_microbatches)) {
    for (const auto block : base::first_ids<BlockId>(num_blocks)) {
      actions.push_back({ActionKind::forward, block, microbatch});
    }
    for (BlockId block(num_blocks); block > BlockId(0);) {
      actions.push_back({ActionKind::backward, --block, microbatch});
    }
  }
  return actions;
}

std::vector<Action> with_events(std::span<const Action> actions) {
  const bool is_interleaved = interleaves_microbatches(actions);
  const auto sum_of = [&](const Action& action) {
    return is_interleaved ? MicrobatchId(0) : action.microbatch;
  };
  Extents computing;  // first to last pass or message
  Extents summing;    // first to last backward pass
  std::size_t last_forward = 0;
  std::size_t last_backward = 0;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    extend(computing, actions[i].microbatch, i);
    if (is_backward(actions[i])) extend(summing, sum_of(actions[i]), last_backward = i);
    if (actions[i].kind == ActionKind::forward) last_forward = i;
  }
  std::vector<Action> result;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    const Extent& computed = computing.at(action.microbatch);
    const Extent summed = is_backward(action) ? summing.at(sum_of(action)) : Extent{i + 1, i + 1};
    const auto add = [&](ActionKind kind, MicrobatchId microbatch) {
      result.push_back({kind, BlockId(0), microbatch});
    };
    if (i == computed.first) add(ActionKind::begin_microbatch, action.microbatch);
    if (i == summed.first) add(ActionKind::begin_gradients, sum_of(action));
    result.push_back(action);
    if (i == last_forward) add(ActionKind::reduce_losses, action.microbatch);
    if (i == summed.last && i != last_backward) add(ActionKind::end_gradients, sum_of(action));
    if (i == computed.last) add(ActionKind::end_microbatch, action.microbatch);
  }
  return result;
}

std::int64_t num_gradient_sums(std::span<const Action> step) {
  return std::count_if(step.begin(), step.end(), [](const Action& action) {
    return action.kind == ActionKind::begin_gradients;
  });
}

}  // namespace dtrain::parallel
