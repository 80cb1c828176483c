// What dtrain doctor checks: machines, run folder, and connections between ranks.
#pragma once

#include <string>

#include "dtrain/comm/process_group.h"
#include "dtrain/comm/world.h"
#include "dtrain/commands/doctor/findings.h"
#include "dtrain/config/saved_run.h"

namespace dtrain::commands::doctor {

/// How far the ranks' clocks are from rank 0's: asked over the control plane, the quickest of some
/// answers each.
///
/// Collective: every rank of the world.
void measure_clocks(comm::World& world, Findings& findings);

/// Time and bandwidth of all-reduces of several sizes on the data plane, by the slowest rank.
///
/// Collective: every rank of the world.
void measure_all_reduce(comm::World& world, Findings& findings);

/// Hosts, versions, types of CPU, cores, memory and devices of all ranks.
///
/// record:     what the front end knows of itself: version, commit, cpu, plugins, gpus.
/// Collective: every rank of the world.
void find_machine_facts(comm::World& world, const config::Config& config,
                        const config::StartRecord& record, Findings& findings);

/// Whether all ranks see the folder that rank 0 sees, and can write there. What was not there
/// before is not there afterwards.
///
/// Collective: every rank of `world`.
void check_run_folder(comm::ProcessGroup& world, const std::string& run_dir, Findings& findings);

}  // namespace dtrain::commands::doctor
