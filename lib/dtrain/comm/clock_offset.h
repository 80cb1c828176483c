// Measures the offset between the clocks of hosts.
#pragma once

#include <functional>
#include <string>

#include "dtrain/base/clock.h"
#include "dtrain/comm/process_group.h"

namespace dtrain::comm {

/// Reads a rank's clock.
using ReadClock = std::function<base::Clock::time_point()>;

/// Returns how far this rank's clock is ahead of that of rank 0, to half of the shortest of several
/// round trips; 0 on rank 0's host, where one clock counts for all.
///
/// Collective: every rank of `group`, which moves CPU tensors. host: names the host of this rank.
/// Throws:     what Work::wait throws.
[[nodiscard]] base::Clock::duration clock_offset(ProcessGroup& group, const std::string& host,
                                                 const ReadClock& now = &base::Clock::now);

}  // namespace dtrain::comm
