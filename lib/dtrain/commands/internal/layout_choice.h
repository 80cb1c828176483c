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
  /// On rank 0, a sentence for the user about the layout, if choose_layout() selected it.
  std::string choice = {};
  /// On rank 0, the predicted step time, if choose_layout() selected the layout.
  std::optional<double> step_seconds = {};
};

/// Resolves --strategy auto; returns other configurations unchanged. A run that resumes on the same
/// number of ranks keeps its layout, so that its bits stay the same. Otherwise rank 0 ranks the
/// possible layouts as `dtrain plan` does, with measured all-reduces, and all ranks use the best
/// one.
///
/// config:     resolved; names the run folder of an earlier attempt, if there was one.
/// Collective: every rank of the world.
/// Throws:     if no layout fits, Error{usage} on rank 0 and Error{comm} on the others.
[[nodiscard]] ChosenLayout choose_layout(const config::Config& config,
                                         const config::StartRecord& record, comm::World& world,
                                         const base::RankEnv& env);

/// Calls planner::rank_layouts and shows a progress line.
///
/// name:   the command or flag to name in progress and errors, such as "plan".
/// Throws: Error{usage} if no layout fits, with the reason for Ranking::closest_rejected().
[[nodiscard]] planner::Ranking rank_with_progress(const std::string& name,
                                                  const config::Config& asked,
                                                  const planner::Cluster& site,
                                                  const planner::Rates& rates,
                                                  const planner::MemoryLimits& memory);

/// `later`: an earlier attempt of this launch began the run.
enum class Attempt { first, later };

/// Lowers an automatic microbatch to the largest one that fits into --memory-limit, or into 80% of
/// the memory of the ranks' devices and machines. If none fits, uses the smallest; job::Job then
/// warns or fails. A run that resumes or is restarted keeps its microbatch if the global batch and
/// the number of ranks allow it, so that its bits stay the same. No-op if the user has set the
/// microbatch.
///
/// start:      from choose_layout().
/// Collective: every rank of the world; all have the same microbatch afterwards.
/// Throws:     as parallel::rank_plan, except for insufficient memory.
void choose_microbatch(ChosenLayout& start, Attempt attempt, comm::World& world);

}  // namespace dtrain::commands
