// Prints how an attempt to run a job ended.
#pragma once

#include <vector>

#include "launcher/judge/verdict.h"
#include "launcher/local/rank.h"
#include "launcher/nodes/placement.h"
#include "launcher/output/shared_output.h"

namespace launcher {

/// Prints the lines after a job that failed or was stopped: the culprit's last output, the ranks
/// that ended because of it, how to continue if no restart may follow, and finally one line that
/// names the rank, how and where it failed, and why.
///
/// Requires: `console` drops no lines.
void report(const Verdict& verdict, const std::vector<Rank>& ranks, const Placement& placement,
            bool may_restart, SharedOutput& console);

}  // namespace launcher
