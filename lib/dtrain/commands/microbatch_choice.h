// A microbatch that follows from the global batch alone: what fits the memory.
#pragma once

#include "dtrain/comm/world.h"
#include "dtrain/commands/layout_choice.h"

namespace dtrain::commands {

/// Which attempt of its launch a start is, as far as an earlier one has begun a run.
enum class Attempt { first, later };

/// Lowers an automatic microbatch to the largest one that --memory-limit allows, or that takes no
/// more than 80 % of what the ranks' devices and machines have; the smallest where none does, which job::Job
/// then warns of or refuses. A run that resumes, or that a launcher starts again, keeps the microbatch it has had where the global
/// batch and the ranks allow that, so that its bits stay. Other starts are left as they are.
///
/// start:      its layout is settled.
/// Collective: every rank of the world; all have the same microbatch afterwards.
/// Throws:     as parallel::rank_plan, but where only memory is missing.
void settle_microbatch(SettledStart& start, Attempt attempt, comm::World& world);

}  // namespace dtrain::commands
