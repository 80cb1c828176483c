// Partitions a model's blocks into pipeline parts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dtrain/model/block_range.h"
#include "dtrain/parallel/pipeline/schedule.h"

namespace dtrain::parallel {

/// The cost of one block of the model to a stage.
struct BlockLoad {
  double flops = 0;        ///< per microbatch, in any unit
  std::int64_t bytes = 0;  ///< saved per microbatch for the backward pass
};

using model::BlockRange;

/// Assigns the next split[i] of the model's `num_layers` layers to part i. The first part also gets
/// the embedding, the last part the head.
///
/// Throws: Error{usage} if the split does not fit (config::require_layers_fit).
[[nodiscard]] std::vector<BlockRange> split_manually(const PipelineShape& shape,
                                                     std::int64_t num_layers,
                                                     const std::vector<std::int64_t>& split);

/// Returns the split, with at least one layer per part, that minimises the FLOPs of the most
/// expensive part, because all stages wait for the slowest. Of equal splits it returns the one with
/// the smallest peak of saved activations: the bytes of a part's blocks times its microbatches in
/// flight.
///
/// blocks: embedding, layers, head.
/// Throws: Error{usage} if there are fewer layers than parts (config::require_layers_fit).
[[nodiscard]] std::vector<BlockRange> balance_parts(const PipelineShape& shape,
                                                    std::span<const BlockLoad> blocks);

}  // namespace dtrain::parallel
