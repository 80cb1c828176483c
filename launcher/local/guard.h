// The guard: the process that the user starts and signals.
#pragma once

#include <signal.h>

#include "dtrain/base/io/descriptor.h"
#include "launcher/job.h"

namespace launcher {

/// The supervising process's connection to its guard.
struct GuardLink {
  dtrain::base::Descriptor
      signals;             // one byte for each signal the guard got; end of file: the guard is dead
  sigset_t original_mask;  // as dtrun was started, for the ranks
};

/// Runs `supervise(job, link)` in a child process and returns its exit status.
///
/// dtrun is two processes, each watching the other: whichever is killed, even by SIGKILL, the other
/// ends everything below it. The guard is the one the user sees: it only passes signals on and
/// waits. The supervising child has a process group of its own, so that a Ctrl-C reaches it once,
/// through the guard. A child that hangs in the kernel after `supervise` has returned, because one
/// of its threads waits for a disk, is left behind after 1 s.
///
/// Throws: Error{spawn} when no process can be made.
[[nodiscard]] int run_guarded(PreparedJob job, int (*supervise)(PreparedJob, GuardLink));

}  // namespace launcher
