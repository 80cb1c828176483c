// Names and creates the folders of a run's log and error files.
#pragma once

#include <string>
#include <system_error>

#include "launcher/nodes/placement.h"
#include "launcher/options.h"
#include "launcher/output/log_writer.h"

namespace launcher {

/// Returns a unique name for a run, made of the start time, the host and a random number.
[[nodiscard]] std::string make_run_id();

/// The files RUN_ID/attempt_N/RANK/{stdout.log,stderr.log,error.json}, named as in torchrun, under
/// --log-dir or in a private temporary folder. Creates no folder if the ranks have no logs. Retries
/// calls that fail with a transient error.
class LogFolder {
 public:
  /// Throws: Error{usage}, or StorageError, naming --log-dir and the folder that cannot be made.
  LogFolder(const Options& options, const Placement& placement);

  /// Switches to the folder of attempt `number`; the constructor has begun attempt 0. Returns why
  /// this attempt has no logs; the job then continues without them. Empty if it has logs.
  [[nodiscard]] std::string begin_attempt(int number);

  [[nodiscard]] const std::string& run_id() const { return run_id_; }
  /// Path of the error file that a torch.distributed program writes; it does not exist when the
  /// attempt begins; empty if the attempt has no logs.
  [[nodiscard]] std::string error_file(int rank) const;
  /// Creates the log of one stream ("stdout" or "stderr"). No file if the attempt has no logs, or
  /// if it cannot be created: then `why_not` has the reason.
  ///
  /// Throws: Error{usage}, or StorageError, naming the file, in the first attempt.
  [[nodiscard]] LogFile create_log(int rank, const char* stream, std::string& why_not) const;
  /// The folder to print to the user; empty without logs.
  [[nodiscard]] std::string log_folder() const { return has_logs_ ? attempt_ : std::string(); }

 private:
  [[nodiscard]] std::string rank_folder(int rank) const;
  [[nodiscard]] std::error_code make_rank_folders() const;

  int first_rank_;
  int num_ranks_;
  bool keep_;      // there are logs to keep
  bool has_logs_;  // in this attempt
  bool is_first_ = true;
  std::string run_id_;
  std::string root_;
  std::string attempt_;
};

}  // namespace launcher
