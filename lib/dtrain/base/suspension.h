// The time for which this process was stopped.
#pragma once

#include "dtrain/base/clock.h"

namespace dtrain::base {

/// Has suspended_time() count from now on, with a thread that ticks twice a second: it takes a pause
/// of more than a second for a stop. Where the system starts no thread, nothing is counted. Call
/// once.
void count_suspensions() noexcept;

/// How long this process was stopped, a stop under way included: by Ctrl-Z, SIGSTOP, a debugger, a
/// frozen control group, or a batch system that suspends jobs.
///
/// Threads: any.
[[nodiscard]] Clock::duration suspended_time() noexcept;

}  // namespace dtrain::base
