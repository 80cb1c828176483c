// What the blocks of a step hold besides parameters and gradients, by arithmetic alone.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dtrain/model/model.h"
#include "dtrain/parallel/engine/action.h"
#include "dtrain/parallel/plan/recompute.h"

namespace dtrain::parallel {

/// Units: bytes.
struct ActivationMemory {
  std::int64_t kept = 0;  ///< between forward and backward: graphs and inputs
  std::int64_t work = 0;  ///< on top of that at the peak of a step
};

/// Blocks whose input another stage of a pipeline sends.
struct ReceivedInputs {
  std::vector<std::int64_t> blocks = {};
  std::int64_t bytes = 0;  ///< of one input
};

/// Follows what the block runner holds in a step. blocks: of each block of this rank; actions: of
/// the step.
[[nodiscard]] ActivationMemory activation_memory(std::span<const model::BlockMemory> blocks,
                                                 std::span<const Action> actions,
                                                 const RecomputePlan& recompute,
                                                 const ReceivedInputs& received = {});

}  // namespace dtrain::parallel
