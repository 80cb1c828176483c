// Predicts the memory of the activations in a step, by simulation.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dtrain/model/model.h"
#include "dtrain/parallel/action.h"
#include "dtrain/parallel/memory.h"
#include "dtrain/parallel/recompute.h"

namespace dtrain::parallel {

using BlockMemories = base::IndexedVector<BlockId, model::BlockMemory>;

/// Blocks whose input comes from another pipeline stage.
struct ReceivedInputs {
  std::vector<BlockId> blocks = {};
  std::int64_t bytes = 0;  ///< per input
};

/// Predicts the memory of a BlockRunner in a step: saved activations, and temporaries at the peak.
/// blocks: memory of each block; actions: the step's actions.
[[nodiscard]] MemoryPlan activation_memory(const BlockMemories& blocks,
                                           std::span<const Action> actions,
                                           const RecomputePlan& recompute,
                                           const ReceivedInputs& received = {});

}  // namespace dtrain::parallel
