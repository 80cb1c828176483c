// --strategy auto: what it stands for, once the ranks have met.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "dtrain/base/rank_env.h"
#include "dtrain/comm/world.h"
#include "dtrain/config/saved_run.h"
#include "dtrain/planner/planner.h"

namespace dtrain::commands {

/// A start whose layout is known.
struct SettledStart {
  config::Config config;       ///< resolved
  config::StartRecord record;  ///< as if the layout had been given
  /// Of a layout that was chosen here, on rank 0: what it is and takes, for people, and the seconds
  /// that a step of it is predicted to last.
  std::string choice = {};
  std::optional<double> step_seconds = {};
};

/// Settles --strategy auto; any other start stays as it is. A run that goes on in its folder on as
/// many ranks as before keeps its layout, so that its bits stay; else rank 0 ranks the layouts of
/// these ranks as dtrain plan does, with all-reduces measured between them, and all take its first.
///
/// config:     resolved, of a start that knows its run folder if an earlier attempt has one.
/// Collective: every rank of the world.
/// Throws:     Error{usage} on rank 0 where no layout fits, on the others Error{comm}.
[[nodiscard]] SettledStart settle_layout(const config::Config& config,
                                         const config::StartRecord& record, comm::World& world,
                                         const base::RankEnv& env);

/// planner::rank_layouts for somebody who waits.
///
/// name:   of what the user asked for, in progress and errors: "plan".
/// Throws: Error{usage} with the reason of one layout if none fits.
[[nodiscard]] planner::Ranking rank_with_progress(
    const std::string& name, const config::Config& asked, const planner::Site& site,
    const planner::Rates& rates, const std::function<std::int64_t(std::int64_t)>& memory);

}  // namespace dtrain::commands
