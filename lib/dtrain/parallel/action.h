// What a step consists of: the engine executes a list of these, whatever wrote it.
#pragma once

#include <cstdint>
#include <vector>

namespace dtrain::parallel {

enum class ActionKind { forward, backward };

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
