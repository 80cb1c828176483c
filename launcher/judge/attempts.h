// Runs a job, and starts it again when it fails.
#pragma once

#include "launcher/job.h"
#include "launcher/local/guard.h"

namespace launcher {

/// Runs the job in attempts, the first one and at most options.max_restarts restarts, each in new
/// processes with a new door, a new free port (a port that the user named stays) and new log files.
/// Writes a line for each restart, and at the end the history of a job that was started again.
///
/// Between attempts no process of the job lives, and a signal ends the wait at once.
///
/// Returns: the exit status of the last attempt.
/// Throws:  as Supervisor::run, unless a restart follows; Error{spawn}, Error{port} or Error{usage}
///          when a restart cannot be prepared.
[[nodiscard]] int run_attempts(PreparedJob job, GuardLink guard);

}  // namespace launcher
