// What --strategy auto and an automatic microbatch stand for, once the ranks have met.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "dtrain/base/rank_env.h"
#include "dtrain/comm/world.h"
#include "dtrain/config/saved_run.h"
#include "dtrain/planner/planner.h"

namespace dtrain::commands {

/// A start whose layout is known.
struct ChosenLayout {
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
[[nodiscard]] ChosenLayout choose_layout(const config::Config& config,
                                         const config::StartRecord& record, comm::World& world,
                                         const base::RankEnv& env);

/// planner::rank_layouts for somebody who waits.
///
/// name:   of what the user asked for, in progress and errors: "plan".
/// Throws: Error{usage} with the reason of one layout if none fits.
[[nodiscard]] planner::Ranking rank_with_progress(const std::string& name,
                                                  const config::Config& asked,
                                                  const planner::Cluster& site,
                                                  const planner::Rates& rates,
                                                  const planner::MemoryLimits& memory);

/// Which attempt of its launch a start is, as far as an earlier one has begun a run.
enum class Attempt { first, later };

/// Lowers an automatic microbatch to the largest one that --memory-limit allows, or that takes no
/// more than 80 % of what the ranks' devices and machines have; the smallest where none does, which
/// job::Job then warns of or refuses. A run that resumes, or that a launcher starts again, keeps the
/// microbatch it has had where the global batch and the ranks allow that, so that its bits stay.
/// Other starts are left as they are.
///
/// start:      its layout is chosen.
/// Collective: every rank of the world; all have the same microbatch afterwards.
/// Throws:     as parallel::rank_plan, but where only memory is missing.
void choose_microbatch(ChosenLayout& start, Attempt attempt, comm::World& world);

}  // namespace dtrain::commands
