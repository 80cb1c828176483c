// Describes a job's process groups for memory prediction.
#pragma once

#include <vector>

#include "dtrain/comm/create_world.h"
#include "dtrain/config/config.h"
#include "dtrain/parallel/engine/engine_setup.h"

namespace dtrain::parallel {

/// Returns all multi-rank groups: World::control() first, then the mesh's. If groups of one kind
/// differ, describes the first one as its first rank sees it.
///
/// config: resolved.
[[nodiscard]] std::vector<comm::PlannedGroup> group_plans(const config::Config& config,
                                                          const model::Model& model,
                                                          const EngineOptions& options);

/// Describes World::control(). saves: checkpoint parts are gathered through it.
[[nodiscard]] comm::PlannedGroup control_plan(const config::Config& config, bool saves);

}  // namespace dtrain::parallel
