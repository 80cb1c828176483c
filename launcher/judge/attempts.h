// Runs a job, and restarts it when it fails.
#pragma once

#include "launcher/job.h"
#include "launcher/local/watchdog.h"

namespace launcher {

/// Runs the job, and restarts it at most options.max_restarts times. Each attempt has new
/// processes, log files and rendezvous sockets, and a new free port unless the user chose one.
/// Prints a line for each restart, and at the end the history of a job that was restarted.
///
/// Between attempts no process of the job is running, and a signal ends the wait at once.
///
/// Returns: the exit status of the last attempt.
/// Throws:  as Supervisor::run, unless a restart follows; Error{spawn}, Error{port} or Error{usage}
///          when a restart cannot be prepared.
[[nodiscard]] int run_attempts(PreparedJob job, WatchdogLink watchdog);

}  // namespace launcher
