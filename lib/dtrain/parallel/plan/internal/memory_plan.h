// Predicts a rank's memory; chooses the recomputation that fits a memory limit.
#pragma once

#include <string>

#include "dtrain/base/error.h"
#include "dtrain/config/config.h"
#include "dtrain/parallel/engine/engine_setup.h"
#include "dtrain/parallel/memory.h"

namespace dtrain::parallel {

/// Returns the subgroups of the mesh axes that a job needs.
[[nodiscard]] mesh::MeshSubgroups mesh_subgroups(const config::Config& config,
                                                 const EngineOptions& options);

/// Sums the predictions of the engine, the groups' transports, the loader and the checkpoint copy.
/// If the ranks of a group need different memory, uses that of the group's first rank. config:
/// resolved.
[[nodiscard]] MemoryPlan plan_memory(const config::Config& config, const model::Model& model,
                                     const EngineOptions& options);

/// Reports a --memory-limit that cannot be met.
class LimitExceeded : public base::Error {
 public:
  explicit LimitExceeded(const std::string& message)
      : base::Error(base::ErrorKind::usage, message) {}
};

/// Returns the recomputation plan of --recompute. `auto` selects the plan with the fewest extra
/// FLOPs that fits --memory-limit (docs/guide/memory.md).
///
/// Throws: LimitExceeded if the limit cannot be met, naming the largest category and the smallest
///         sufficient limit.
[[nodiscard]] RecomputePlan choose_recompute(const config::Config& config,
                                             const model::Model& model, EngineOptions options);

}  // namespace dtrain::parallel
