// Prepares a job and starts its ranks.
#pragma once

#include <signal.h>
#include <sys/resource.h>

#include <string>
#include <vector>

#include "launcher/bind.h"
#include "launcher/log_folder.h"
#include "launcher/log_writer.h"
#include "launcher/options.h"
#include "launcher/port.h"
#include "launcher/rank.h"
#include "launcher/shared_output.h"

namespace launcher {

/// All that can be refused before a rank starts has been checked.
struct PreparedJob {
  Options options;
  std::string program_file;
  ReservedPort port;
  Door door;
  LogFolder folder;
  CpuBinding binding = {};
  rlimit open_files{};  // RLIMIT_NOFILE as dtrun found it, which the ranks get
};

/// Starts one rank.
///
/// Throws: Error{spawn} or Error{usage}, after which this rank has no process.
[[nodiscard]] Rank start_rank(const PreparedJob& job, int index, const sigset_t& signal_mask,
                              const SharedOutput& console, LogWriter& logs);

}  // namespace launcher
