// Starts one rank.
#pragma once

#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "dtrain/base/cpu_list.h"

namespace launcher {

/// A rank to be. All descriptors stay the caller's; the rank has copies.
struct SpawnRequest {
  std::string file;                      // what find_program gave
  std::vector<std::string> arguments;    // the program's name first
  std::vector<std::string> environment;  // NAME=VALUE
  int standard_input = -1;
  int standard_output = -1;
  int standard_error = -1;
  std::vector<int> inherited;  // kept open in the rank under the same numbers
  sigset_t signal_mask{};      // of the rank
  rlimit open_files{};         // of the rank (RLIMIT_NOFILE)
  dtrain::base::CpuList cpus;  // where it may run; empty: where the caller may
};

/// Starts the program in a process group of its own, to be killed by the kernel when dtrun dies.
/// Tries again, for up to 30 s, while the storage of its file fails in passing.
///
/// Throws: naming the program, after which there is no child: StorageError if that has not helped;
///         Error{memory} without room for another process; else Error{spawn}.
[[nodiscard]] pid_t spawn(const SpawnRequest& request);

}  // namespace launcher
