// Predicts the memory of a rank, and chooses what is recomputed so that it fits.
#pragma once

#include <string>

#include "dtrain/base/error.h"
#include "dtrain/config/config.h"
#include "dtrain/parallel/engine/engine_setup.h"
#include "dtrain/parallel/memory.h"

namespace dtrain::parallel {

/// The groups of a job beside those along its axes.
[[nodiscard]] mesh::MeshSubgroups mesh_subgroups(const config::Config& config,
                                                 const EngineOptions& options);

/// Adds up the parts of whoever allocates: the engine, the groups' transports, the loader and the
/// copy for a checkpoint. Where ranks differ, of a group it counts what its first rank holds.
/// config: resolved.
[[nodiscard]] MemoryPlan plan_memory(const config::Config& config, const model::Model& model,
                                     const EngineOptions& options);

/// --memory-limit cannot be met.
class LimitExceeded : public base::Error {
 public:
  explicit LimitExceeded(const std::string& message)
      : base::Error(base::ErrorKind::usage, message) {}
};

/// The plan of --recompute; with auto that of the fewest extra FLOPs that --memory-limit allows
/// (docs/guide/memory.md).
///
/// Throws: LimitExceeded if the limit cannot be met, naming the largest part and the least that
///         would fit.
[[nodiscard]] RecomputePlan choose_recompute(const config::Config& config,
                                             const model::Model& model, EngineOptions options);

}  // namespace dtrain::parallel
