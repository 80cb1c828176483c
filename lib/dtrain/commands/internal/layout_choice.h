// Resolves --strategy auto and an automatic microbatch, once the ranks are connected.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "dtrain/base/rank_env.h"
#include "dtrain/comm/world.h"
#include "dtrain/config/saved_run.h"
#include "dtrain/planner/planner.h"

namespace dtrain::commands {

/// The configuration of a launch whose layout is known.
struct ChosenLayout {
  config::Config config;       ///< resolved
  config::StartRecord record;  ///< as if the user had given the layout
  /// If the layout was chosen here, on rank 0: a sentence about it for people.
  std::string choice = {};
  std::optional<double> step_seconds = {};  ///< predicted; likewise
};

/// Resolves --strategy auto; returns other configurations unchanged. A run that resumes on the same
/// number of ranks keeps its layout, so that its bits stay the same; else rank 0 ranks the possible
/// layouts as dtrain plan does, with measured all-reduces, and all ranks use the best one.
///
/// config:     resolved; names the run folder of an earlier attempt, if there was one.
/// Collective: every rank of the world.
/// Throws:     if no layout fits, Error{usage} on rank 0 and Error{comm} on the others.
[[nodiscard]] ChosenLayout choose_layout(const config::Config& config,
                                         const config::StartRecord& record, comm::World& world,
                                         const base::RankEnv& env);

/// planner::rank_layouts with a progress line.
///
/// name:   of the command or flag, in progress and errors: "plan".
/// Throws: Error{usage} if no layout fits, with the reason for the layout that nearly fits.
[[nodiscard]] planner::Ranking rank_with_progress(const std::string& name,
                                                  const config::Config& asked,
                                                  const planner::Cluster& site,
                                                  const planner::Rates& rates,
                                                  const planner::MemoryLimits& memory);

/// Tells whether an earlier attempt of this launch began the run.
enum class Attempt { first, later };

/// Lowers an automatic microbatch to the largest one that fits --memory-limit, or 80 % of the memory
/// of the ranks' devices and machines; to the smallest one if none fits, which job::Job then warns of
/// or refuses. A run that resumes or is restarted keeps its microbatch if the global batch and the
/// ranks allow it, so that its bits stay the same. No-op for a given microbatch.
///
/// start:      its layout is chosen.
/// Collective: every rank of the world; all have the same microbatch afterwards.
/// Throws:     as parallel::rank_plan, except for insufficient memory.
void choose_microbatch(ChosenLayout& start, Attempt attempt, comm::World& world);

}  // namespace dtrain::commands
