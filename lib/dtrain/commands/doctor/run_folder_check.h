// Checks that a run folder serves all ranks.
#pragma once

#include <string>

#include "dtrain/comm/process_group.h"
#include "dtrain/commands/doctor/findings.h"

namespace dtrain::commands::doctor {

/// Whether all ranks see the folder that rank 0 sees, and can write there. What was not there
/// before is not there afterwards.
///
/// Collective: every rank of `world`.
void check_run_folder(comm::ProcessGroup& world, const std::string& run_dir, Findings& findings);

}  // namespace dtrain::commands::doctor
