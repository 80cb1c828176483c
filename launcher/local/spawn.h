// Starts the process of a rank.
#pragma once

#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "dtrain/base/host/cpu_list.h"

namespace launcher {

/// The process to start. The caller keeps all descriptors; the process gets copies.
struct SpawnRequest {
  std::string file;                      // from find_program
  std::vector<std::string> arguments;    // the program's name first
  std::vector<std::string> environment;  // NAME=VALUE
  int standard_input = -1;
  int standard_output = -1;
  int standard_error = -1;
  std::vector<int> inherited;  // kept open in the process under the same numbers
  sigset_t signal_mask{};
  rlimit open_files{};         // RLIMIT_NOFILE
  dtrain::base::CpuList cpus;  // affinity mask; empty: the caller's
};

/// Starts the program in its own process group; the kernel kills it when dtrun dies. If the storage
/// of its file fails with a transient error, retries for up to 30 s.
///
/// Throws: naming the program, and leaves no child: StorageError if the storage still fails;
///         Error{memory} if there is no memory for another process; otherwise Error{spawn}.
[[nodiscard]] pid_t spawn(const SpawnRequest& request);

}  // namespace launcher
