// The groups of a job as far as their memory follows from them.
#pragma once

#include <vector>

#include "dtrain/comm/create_world.h"
#include "dtrain/config/config.h"
#include "dtrain/parallel/engine/engine_setup.h"

namespace dtrain::parallel {

/// All groups of several ranks: World::control() first, then the mesh's. Where groups of one kind
/// differ, as their first one's first rank sees it.
///
/// config: resolved.
[[nodiscard]] std::vector<comm::PlannedGroup> group_plans(const config::Config& config,
                                                          const model::Model& model,
                                                          const EngineOptions& options);

/// World::control(). saves: the parts of checkpoints are collected through it.
[[nodiscard]] comm::PlannedGroup control_plan(const config::Config& config, bool saves);

}  // namespace dtrain::parallel
