// Which blocks keep no graph from forward to backward, but run again in the backward pass.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dtrain/model/model.h"

namespace dtrain::parallel {

/// Neighbouring blocks, of which only the first one's input is kept. Ahead of the last one's
/// backward all but the last run again without a graph, which gives each its input; then each runs
/// with a graph right before its own backward, so that one graph is there at a time.
struct RecomputeGroup {
  model::BlockId begin;
  model::BlockId end;  ///< exclusive

  bool operator==(const RecomputeGroup&) const = default;
};

/// Groups lie within the runs of layers that a rank computes one after the other.
struct RecomputePlan {
  std::vector<RecomputeGroup> groups;  ///< ascending, without overlap

  /// The group of a block, or null.
  [[nodiscard]] const RecomputeGroup* group_of(model::BlockId block) const;
  /// Returns the FLOPs that a token's backward pass adds: a forward pass of each block of a group,
  /// and one more of each but the last.
  [[nodiscard]] double extra_flops_per_token(const model::Model& model) const;

  bool operator==(const RecomputePlan&) const = default;
};

/// The `count` layers that are nearest to the input, each by itself: their graphs would be the last
/// ones to go, so that leaving them out lowers the peak the most.
[[nodiscard]] RecomputePlan recompute_lowest_layers(std::span<const model::BlockRange> layers,
                                                    std::int64_t count);

/// All layers, in groups of `size`; the last group of a run may have fewer.
[[nodiscard]] RecomputePlan recompute_in_groups(std::span<const model::BlockRange> layers,
                                                std::int64_t size);

}  // namespace dtrain::parallel
