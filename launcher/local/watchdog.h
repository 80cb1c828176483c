// Runs the supervisor under a watchdog, the process that the user starts and signals. If one of the
// two is killed, the other ends the job.
#pragma once

#include <signal.h>

#include "dtrain/base/io/descriptor.h"
#include "launcher/job.h"

namespace launcher {

/// The supervisor's connection to its watchdog.
struct WatchdogLink {
  dtrain::base::Descriptor
      signals;  // one byte per signal that the watchdog received; end of file: it has ended
  sigset_t original_mask;  // signal mask that dtrun was started with, for the ranks
};

/// Runs `supervise(job, link)` in a child process and returns its exit status.
///
/// dtrun consists of two processes that watch each other: if one is killed, even by SIGKILL, the
/// other ends all processes of the job. The user sees the watchdog, which only forwards signals and
/// waits. The supervising child has its own process group, so that a Ctrl-C reaches it once,
/// through the watchdog. A child that hangs in the kernel after `supervise` has returned, because
/// one of its threads waits for a disk, is left behind after 1 s.
///
/// Throws: Error{spawn} if the child process cannot be created.
[[nodiscard]] int run_under_watchdog(PreparedJob job, int (*supervise)(PreparedJob, WatchdogLink));

}  // namespace launcher
