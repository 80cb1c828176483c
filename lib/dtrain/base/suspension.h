// The time for which this process was stopped by Ctrl-Z.
#pragma once

#include "dtrain/base/clock.h"

namespace dtrain::base {

/// Has suspended_time() count from now on. SIGTSTP stops the process as by default; one that is
/// ignored stays ignored.
void count_suspensions() noexcept;

/// How long SIGTSTP has stopped this process, a stop under way included: Ctrl-Z, dtrun's, or that of
/// a batch system that suspends jobs. A stop by SIGSTOP alone leaves no trace.
///
/// Threads: any.
[[nodiscard]] Clock::duration suspended_time() noexcept;

}  // namespace dtrain::base
