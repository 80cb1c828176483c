// What a rank's process and machine are.
#pragma once

#include "dtrain/comm/world.h"
#include "dtrain/commands/doctor/findings.h"
#include "dtrain/config/saved_run.h"

namespace dtrain::commands::doctor {

/// Hosts, versions, types of CPU, cores, memory and devices of all ranks.
///
/// record:     what the front end knows of itself: version, commit, cpu, plugins, gpus.
/// Collective: every rank of the world.
void find_machine_facts(comm::World& world, const config::Config& config,
                        const config::StartRecord& record, Findings& findings);

}  // namespace dtrain::commands::doctor
