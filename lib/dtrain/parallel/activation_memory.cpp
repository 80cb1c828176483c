#include "dtrain/parallel/activation_memory.h"

#include <algorithm>
#include <vector>

namespace dtrain::parallel {
namespace {

// What a block runner holds while it runs one microbatch, block by block.
class Walk {
 public:
  Walk(std::span<const model::BlockMemory> blocks, const RecomputePlan& recompute)
      : blocks_(blocks),
        recompute_(recompute),
        has_graph_(blocks.size()),
        has_input_(blocks.size() + 1) {}

  void forward(std::size_t block) {
    const RecomputeGroup* group = group_of(block);
    has_input_[block] = group == nullptr || group->begin == static_cast<std::int64_t>(block);
    latest_ = block;
    if (group == nullptr) {
      record(block);
    } else {
      pass(blocks_[block].forward_without_graph);
    }
    kept_ = std::max(kept_, held());
  }

  void backward(std::size_t block) {
    if (const RecomputeGroup* group = group_of(block)) run_again(block, *group);
    const model::BlockMemory& memory = blocks_[block];
    pass(memory.backward - memory.saved);
    has_graph_[block] = has_input_[block] = false;
    gradient_ = block > 0 ? blocks_[block - 1].output : 0;
  }

  [[nodiscard]] ActivationMemory result() const { return {.kept = kept_, .work = peak_ - kept_}; }

 private:
  [[nodiscard]] const RecomputeGroup* group_of(std::size_t block) const {
    return recompute_.group_of(static_cast<std::int64_t>(block));
  }

  // A forward pass with a graph.
  void record(std::size_t block) {
    pass(blocks_[block].forward);
    has_graph_[block] = true;
  }

  void run_again(std::size_t block, const RecomputeGroup& group) {
    if (static_cast<std::int64_t>(block) + 1 == group.end) {
      for (auto inner = static_cast<std::size_t>(group.begin); inner < block; ++inner) {
        pass(blocks_[inner].forward_without_graph);
        has_input_[inner + 1] = true;
      }
    }
    record(block);
  }

  [[nodiscard]] std::int64_t held() const {
    std::int64_t bytes = gradient_;
    for (std::size_t block = 0; block < blocks_.size(); ++block) {
      // An output is the next block's input too.
      const bool has_output = has_graph_[block] || has_input_[block + 1] || latest_ == block;
      bytes +=
          (has_output ? blocks_[block].output : 0) + (has_graph_[block] ? blocks_[block].saved : 0);
    }
    return bytes;
  }

  void pass(std::int64_t on_top) { peak_ = std::max(peak_, held() + on_top); }

  std::span<const model::BlockMemory> blocks_;
  const RecomputePlan& recompute_;
  std::vector<bool> has_graph_;
  std::vector<bool> has_input_;  // kept by the block
  std::size_t latest_ = 0;       // what ran last
  std::int64_t gradient_ = 0;    // of the input of the block that ran backward last
  std::int64_t kept_ = 0;
  std::int64_t peak_ = 0;
};

}  // namespace

ActivationMemory activation_memory(std::span<const model::BlockMemory> blocks,
                                   const RecomputePlan& recompute) {
  Walk walk(blocks, recompute);
  for (std::size_t block = 0; block < blocks.size(); ++block) walk.forward(block);
  for (std::size_t block = blocks.size(); block-- > 0;) walk.backward(block);
  return walk.result();
}

}  // namespace dtrain::parallel
