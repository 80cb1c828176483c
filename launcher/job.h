// Prepares a job and starts its ranks.
#pragma once

#include <signal.h>
#include <sys/resource.h>

#include <string>
#include <vector>

#include "launcher/console.h"
#include "launcher/log_writer.h"
#include "launcher/options.h"
#include "launcher/port.h"
#include "launcher/rank.h"
#include "launcher/run_folder.h"

namespace launcher {

/// All that can be refused before a rank starts has been checked.
struct Job {
  Options options;
  std::string program_file;
  ReservedPort port;
  Door door;
  RunFolder folder;
  rlimit open_files{};  // RLIMIT_NOFILE as dtrun found it, which the ranks get
};

/// Starts one rank.
///
/// Throws: Error{spawn} or Error{usage}, after which this rank has no process.
[[nodiscard]] Rank start_rank(const Job& job, int index, const sigset_t& signal_mask,
                              const Console& console, LogWriter& logs);

}  // namespace launcher
