// Follows what a BlockRunner holds in a step, in sizes instead of tensors.
#include <algorithm>
#include <map>
#include <optional>

#include "dtrain/parallel/engine/block_runner.h"

namespace dtrain::parallel {
namespace {

// Stands for a BlockRunner's entry of one microbatch.
struct Held {
  explicit Held(std::int64_t num_blocks) : has_graph(num_blocks), has_input(num_blocks + 1) {}

  base::IndexedVector<BlockId, bool> has_graph;
  base::IndexedVector<BlockId, bool> has_input;  // it is kept
  std::optional<BlockId> latest;                 // what ran last, until its output is sent on
  std::int64_t gradient = 0;                     // of the input of the block that ran backward last
};

// Runs a step's passes as the runner does.
class Walk {
 public:
  Walk(const BlockMemories& blocks, const RecomputePlan& recompute, const ReceivedInputs& received)
      : blocks_(blocks), recompute_(recompute), received_(received) {}

  void run(const Action& action) {
    if (action.kind == ActionKind::forward) forward(action.block, action.microbatch);
    if (action.kind == ActionKind::backward) backward(action.block, action.microbatch);
    if (action.kind == ActionKind::send_activation) microbatches_.at(action.microbatch).latest = {};
  }

  [[nodiscard]] MemoryPlan result() const { return {.activations = kept_, .work = peak_ - kept_}; }

 private:
  void forward(BlockId block, MicrobatchId microbatch) {
    Held& held = microbatches_.try_emplace(microbatch, blocks_.size()).first->second;
    const RecomputeGroup* group = group_of(block);
    held.has_input[block] = group == nullptr || group->begin == block;
    held.latest = block;
    pass(group == nullptr ? blocks_[block].forward : blocks_[block].forward_without_graph);
    held.has_graph[block] = group == nullptr;
    kept_ = std::max(kept_, total());
  }

  void backward(BlockId block, MicrobatchId microbatch) {
    Held& held = microbatches_.at(microbatch);
    if (const RecomputeGroup* group = group_of(block)) run_again(block, *group, held);
    pass(blocks_[block].backward - blocks_[block].saved);
    held.has_graph[block] = held.has_input[block] = false;
    held.gradient = block > BlockId(0) ? blocks_[block - 1].output : 0;
    if (block == BlockId(0)) microbatches_.erase(microbatch);
  }

  void run_again(BlockId block, const RecomputeGroup& group, Held& held) {
    const bool is_first_back = block + 1 == group.end;
    for (BlockId inner = group.begin; is_first_back && inner < block; ++inner) {
      pass(blocks_[inner].forward_without_graph);
      held.has_input[inner + 1] = true;
    }
    pass(blocks_[block].forward);
    held.has_graph[block] = true;
  }

  [[nodiscard]] const RecomputeGroup* group_of(BlockId block) const {
    return recompute_.group_of(block);
  }

  [[nodiscard]] bool is_received(BlockId block) const {
    return std::count(received_.blocks.begin(), received_.blocks.end(), block) > 0;
  }

  [[nodiscard]] std::int64_t total() const {
    std::int64_t bytes = 0;
    for (const auto& [microbatch, held] : microbatches_) {
      bytes += held.gradient;
      for (const BlockId block : blocks_.ids()) {
        // An output is the next block's input too.
        const bool is_input = held.has_input[block + 1] && !is_received(block + 1);
        const bool has_output = held.has_graph[block] || is_input || held.latest == block;
        bytes += (has_output ? blocks_[block].output : 0) +
                 (held.has_graph[block] ? blocks_[block].saved : 0) +
                 (held.has_input[block] && is_received(block) ? received_.bytes : 0);
      }
    }
    return bytes;
  }

  void pass(std::int64_t on_top) { peak_ = std::max(peak_, total() + on_top); }

  const BlockMemories& blocks_;
  const RecomputePlan& recompute_;
  const ReceivedInputs& received_;
  std::map<MicrobatchId, Held> microbatches_;  // under way
  std::int64_t kept_ = 0;
  std::int64_t peak_ = 0;
};

}  // namespace

MemoryPlan BlockRunner::memory(const BlockMemories& blocks, std::span<const Action> actions,
                               const RecomputePlan& recompute, const ReceivedInputs& received) {
  Walk walk(blocks, recompute, received);
  for (const Action& action : actions) walk.run(action);
  return walk.result();
}

}  // namespace dtrain::parallel
