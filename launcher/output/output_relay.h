// Relays the output of this node's ranks to dtrun's output and to their logs.
#pragma once

#include <chrono>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/base/clock.h"
#include "launcher/judge/verdict.h"
#include "launcher/local/rank.h"
#include "launcher/nodes/placement.h"
#include "launcher/options.h"
#include "launcher/output/log_writer.h"
#include "launcher/output/shared_output.h"

namespace launcher {

/// Shows and logs the ranks' output, applies back-pressure to them when readers or disks fall
/// behind, and prints dtrun's own lines.
///
/// Threads: one.
class OutputRelay {
 public:
  /// log_folder: of this attempt's logs; empty: none.
  /// Throws:     Error{spawn} when no threads can be made.
  OutputRelay(const Options& options, std::string log_folder);

  [[nodiscard]] SharedOutput& console() { return console_; }
  [[nodiscard]] LogWriter& logs() { return logs_; }

  /// Prints a line of dtrun's own.
  void say(std::string_view text) { console_.line(Stream::error, console_.own_prefix(), text); }
  void warn(std::string_view text) { say("warning: " + std::string(text)); }
  /// Prints what went wrong with the logs since the last call.
  void warn_of_logs();

  /// Takes a buffer of a rank's output, unless that is held back.
  void read(RankStream& stream);

  /// Prints an error that a rank reported instead of writing it: once, however many of `own`, the
  /// ranks of this node, report it. One that ended the start waits for the notes of others.
  void show_error(Rank& rank, std::span<const Rank> own, bool has_begun);
  [[nodiscard]] bool has_start_errors() const { return !start_errors_.empty(); }
  void show_start_errors();
  /// Prints them if the job has begun since, or does something else: they did not end the start.
  ///
  /// REQUIRES: has_start_errors().
  void show_old_start_errors(bool has_begun);

  /// Decides whether output is held back: while dtrun's readers or the logs have too much waiting,
  /// unless the job ends, from which on output that nobody takes is dropped.
  ///
  /// Returns: whether that has changed.
  [[nodiscard]] bool update_hold(bool job_ends);
  [[nodiscard]] bool is_held() const { return is_held_; }

  /// Reads what is left in the ranks' pipes, and closes them.
  void finish(std::span<Rank> ranks);
  /// Prints what went wrong with the logs, then the report on the attempt (output/report.h).
  void print_report(const Verdict& verdict, const std::vector<Rank>& ranks,
                    const Placement& placement);

 private:
  const Options& options_;
  std::string log_folder_;
  SharedOutput console_;
  LogWriter logs_;
  /// Errors that ended the start, behind their prefixes.
  std::vector<std::pair<std::string, std::string>> start_errors_;
  dtrain::base::Clock::time_point start_error_time_;  // of the first
  bool is_held_ = false;
};

}  // namespace launcher
