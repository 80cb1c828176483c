// Activation checkpointing: selects the blocks that are recomputed in the backward pass, so that
// their graphs need not be saved.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dtrain/model/model.h"

namespace dtrain::parallel {

/// Consecutive blocks that save only the input of the first block. Their backward pass first reruns
/// all but the last block without a graph, to restore every block's input. Each block then runs
/// with a graph right before its own backward pass, so only one graph exists at a time.
struct RecomputeGroup {
  model::BlockId begin;
  model::BlockId end;  ///< exclusive

  bool operator==(const RecomputeGroup&) const = default;
};

/// The recomputed groups of a rank. No group crosses a chunk boundary of a pipeline stage.
struct RecomputePlan {
  std::vector<RecomputeGroup> groups;  ///< ascending, disjoint

  /// Returns the group that contains the block, or null.
  [[nodiscard]] const RecomputeGroup* group_of(model::BlockId block) const;
  /// Returns the FLOPs per token that recomputation adds: for each group, one forward pass of each
  /// block and a second one of each block but the last.
  [[nodiscard]] double extra_flops_per_token(const model::Model& model) const;

  bool operator==(const RecomputePlan&) const = default;
};

/// Recomputes the `count` layers nearest to the input, each as its own group. Their graphs would be
/// freed last, so dropping them lowers the peak the most.
[[nodiscard]] RecomputePlan recompute_lowest_layers(std::span<const model::BlockRange> layers,
                                                    std::int64_t count);

/// Recomputes all layers in groups of `size`; the last group of a chunk may be smaller.
[[nodiscard]] RecomputePlan recompute_in_groups(std::span<const model::BlockRange> layers,
                                                std::int64_t size);

}  // namespace dtrain::parallel
