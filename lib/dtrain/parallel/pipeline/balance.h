// Which blocks make up which part of the model.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dtrain/model/block_range.h"
#include "dtrain/parallel/pipeline/schedule.h"

namespace dtrain::parallel {

/// The cost of one block of the model to a stage.
struct BlockLoad {
  double flops = 0;        ///< of one microbatch, in any unit
  std::int64_t bytes = 0;  ///< that one microbatch keeps from forward to backward
};

using model::BlockRange;

/// The parts of a model of `num_layers` layers of which part i has split[i]. A model's blocks are
/// its embedding, which goes with the first part, its layers, and its head, which goes with the
/// last.
///
/// Throws: Error{usage} where the split does not fit (config::require_layers_fit).
[[nodiscard]] std::vector<BlockRange> split_by_hand(const PipelineShape& shape,
                                                    std::int64_t num_layers,
                                                    const std::vector<std::int64_t>& split);

/// A split that gives every part at least one layer and whose most expensive part has the fewest
/// FLOPs: all stages wait for the slowest. Among these it is one whose largest part is the
/// smallest, by what its blocks keep of as many microbatches as the schedule has in flight there.
///
/// blocks: embedding, layers, head.
/// Throws: Error{usage} where there are fewer layers than parts (config::require_layers_fit).
[[nodiscard]] std::vector<BlockRange> balance_parts(const PipelineShape& shape,
                                                    std::span<const BlockLoad> blocks);

}  // namespace dtrain::parallel
