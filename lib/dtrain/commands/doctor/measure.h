// Measures the connections between ranks.
#pragma once

#include "dtrain/comm/world.h"
#include "dtrain/commands/doctor/findings.h"

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

}  // namespace dtrain::commands::doctor
