#include "dtrain/parallel/engine/action.h"

namespace dtrain::parallel {

std::vector<Action> sequential_actions(std::int64_t num_blocks, std::int64_t num_microbatches) {
  std::vector<Action> actions;
  for (std::int64_t microbatch = 0; microbatch < num_microbatches; ++microbatch) {
    for (std::int64_t block = 0; block < num_blocks; ++block) {
      actions.push_back({ActionKind::forward, block, microbatch});
    }
    for (std::int64_t block = num_blocks - 1; block >= 0; --block) {
      actions.push_back({ActionKind::backward, block, microbatch});
    }
  }
  return actions;
}

}  // namespace dtrain::parallel
