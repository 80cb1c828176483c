// Where a rank's memory goes, computed from sizes before anything is allocated; and what is
// recomputed so that it fits.
#pragma once

#include <cstdint>

#include "dtrain/config/config.h"
#include "dtrain/parallel/engine/engine_setup.h"

namespace dtrain::parallel {

/// Units: bytes of one rank.
struct MemoryPlan {
  std::int64_t parameters = 0;
  std::int64_t gradients = 0;  ///< spare arenas of the tree order included
  std::int64_t optimizer = 0;
  std::int64_t units = 0;        ///< gathered, and whole gradients of single units, at the peak
  std::int64_t activations = 0;  ///< one microbatch, kept from forward to backward
  std::int64_t buffers = 0;      ///< constant tables and tokens
  std::int64_t work = 0;         ///< temporaries of a block, at the peak
  std::int64_t checkpoint = 0;   ///< the copy that is written while training goes on

  std::int64_t state = 0;  ///< masters and optimizer state, wherever they lie; no part of the total

  [[nodiscard]] std::int64_t total() const {
    return parameters + gradients + optimizer + units + activations + buffers + work + checkpoint;
  }
};

/// config: resolved.
[[nodiscard]] MemoryPlan plan_memory(const config::Config& config, const model::Model& model,
                                     const EngineOptions& options);

/// What --recompute says; with auto the plan of the fewest extra FLOPs that --memory-limit allows
/// (docs/memory.md).
///
/// Throws: Error{usage} if the limit cannot be met, naming the least that would fit.
[[nodiscard]] RecomputePlan choose_recompute(const config::Config& config,
                                             const model::Model& model, EngineOptions options);

}  // namespace dtrain::parallel
