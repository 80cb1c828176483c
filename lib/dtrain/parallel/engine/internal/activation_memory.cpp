#include "dtrain/parallel/engine/internal/activation_memory.h"

#include <algorithm>
#include <map>
#include <optional>

namespace dtrain::parallel {
namespace {

// Simulated memory of one microbatch in a block runner.
struct MicrobatchMemory {
  explicit MicrobatchMemory(std::int64_t num_blocks)
      : has_graph(num_blocks), has_input(num_blocks + 1) {}

  base::IndexedVector<BlockId, bool> has_graph;
  base::IndexedVector<BlockId, bool> has_input;  // is saved
  std::optional<BlockId> latest;                 // block that ran last, until its output is sent
  std::int64_t gradient = 0;                     // bytes of the last computed input gradient
};

// Executes a step's passes with sizes instead of tensors.
class MemorySimulation {
 public:
  MemorySimulation(const BlockMemories& blocks, const RecomputePlan& recompute,
                   const ReceivedInputs& received)
      : blocks_(blocks), recompute_(recompute), received_(received) {}

  void run(const Action& action) {
    if (action.kind == ActionKind::forward) forward(action.block, action.microbatch);
    if (action.kind == ActionKind::backward) backward(action.block, action.microbatch);
    if (action.kind == ActionKind::send_activation) microbatches_.at(action.microbatch).latest = {};
  }

  [[nodiscard]] MemoryPlan result() const {
    return {.activations = saved_, .work = peak_ - saved_};
  }

 private:
  void forward(BlockId block, MicrobatchId microbatch) {
    MicrobatchMemory& memory = microbatches_.try_emplace(microbatch, blocks_.size()).first->second;
    const RecomputeGroup* group = group_of(block);
    memory.has_input[block] = group == nullptr || group->begin == block;
    memory.latest = block;
    pass(group == nullptr ? blocks_[block].forward : blocks_[block].forward_without_graph);
    memory.has_graph[block] = group == nullptr;
    saved_ = std::max(saved_, total());
  }

  void backward(BlockId block, MicrobatchId microbatch) {
    MicrobatchMemory& memory = microbatches_.at(microbatch);
    if (const RecomputeGroup* group = group_of(block)) recompute(block, *group, memory);
    pass(blocks_[block].backward - blocks_[block].saved);
    memory.has_graph[block] = memory.has_input[block] = false;
    memory.gradient = block > BlockId(0) ? blocks_[block - 1].output : 0;
    if (block == BlockId(0)) microbatches_.erase(microbatch);
  }

  void recompute(BlockId block, const RecomputeGroup& group, MicrobatchMemory& memory) {
    const bool is_first_backward = block + 1 == group.end;
    for (BlockId inner = group.begin; is_first_backward && inner < block; ++inner) {
      pass(blocks_[inner].forward_without_graph);
      memory.has_input[inner + 1] = true;
    }
    pass(blocks_[block].forward);
    memory.has_graph[block] = true;
  }

  [[nodiscard]] const RecomputeGroup* group_of(BlockId block) const {
    return recompute_.group_of(block);
  }

  [[nodiscard]] bool is_received(BlockId block) const {
    return std::count(received_.blocks.begin(), received_.blocks.end(), block) > 0;
  }

  [[nodiscard]] std::int64_t total() const {
    std::int64_t bytes = 0;
    for (const auto& [microbatch, memory] : microbatches_) {
      bytes += memory.gradient;
      for (const BlockId block : blocks_.ids()) {
        // An output is also the next block's input.
        const bool is_input = memory.has_input[block + 1] && !is_received(block + 1);
        const bool has_output = memory.has_graph[block] || is_input || memory.latest == block;
        bytes += (has_output ? blocks_[block].output : 0) +
                 (memory.has_graph[block] ? blocks_[block].saved : 0) +
                 (memory.has_input[block] && is_received(block) ? received_.bytes : 0);
      }
    }
    return bytes;
  }

  void pass(std::int64_t temporaries) { peak_ = std::max(peak_, total() + temporaries); }

  const BlockMemories& blocks_;
  const RecomputePlan& recompute_;
  const ReceivedInputs& received_;
  std::map<MicrobatchId, MicrobatchMemory> microbatches_;  // in flight
  std::int64_t saved_ = 0;
  std::int64_t peak_ = 0;
};

}  // namespace

MemoryPlan activation_memory(const BlockMemories& blocks, std::span<const Action> actions,
                             const RecomputePlan& recompute, const ReceivedInputs& received) {
  MemorySimulation simulation(blocks, recompute, received);
  for (const Action& action : actions) simulation.run(action);
  return simulation.result();
}

}  // namespace dtrain::parallel
