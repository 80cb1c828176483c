// Checks that all ranks share one configuration.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "dtrain/comm/process_group.h"

namespace dtrain::comm {

/// Something all ranks should agree on: its name as a user knows it, and this rank's value.
using NamedValue = std::pair<std::string, std::string>;

/// Returns if every rank gave the same list. Costs 16 bytes per rank when they agree.
///
/// Collective: every rank of `group`.
/// Throws:     Error{usage}, the same on every rank, naming the first entry that differs, the two
///             ranks and their values.
void check_agreement(ProcessGroup& group, const std::vector<NamedValue>& values);

}  // namespace dtrain::comm
