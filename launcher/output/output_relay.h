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
  /// Throws:     Error{spawn} if its threads cannot be started.
  OutputRelay(const Options& options, std::string log_folder);

  [[nodiscard]] SharedOutput& console() { return console_; }
  [[nodiscard]] LogWriter& logs() { return logs_; }

  /// Prints a message of dtrun itself.
  void say(std::string_view text) { console_.line(Stream::error, console_.own_prefix(), text); }
  void warn(std::string_view text) { say("warning: " + std::string(text)); }
  /// Prints the warnings about the logs since the last call.
  void warn_of_logs();

  /// Relays a buffer of a rank's output. No-op under back-pressure.
  void read(RankStream& stream);

  /// Prints an error that a rank reported to dtrun: once, even if several of this node's ranks
  /// (`own`) report it. Errors before the first step are kept until the attempt ends.
  void show_reported_error(Rank& rank, std::span<const Rank> own, bool has_begun);
  [[nodiscard]] bool has_startup_errors() const { return !startup_errors_.empty(); }
  void show_startup_errors();
  /// Prints the startup errors once they are two seconds old or the job has begun: they did not end
  /// the startup.
  ///
  /// REQUIRES: has_startup_errors().
  void show_old_startup_errors(bool has_begun);

  /// Applies back-pressure while more than 1 MiB waits for dtrun's readers or for the logs. If the
  /// job ends, drops the excess instead.
  ///
  /// Returns: whether the back-pressure has changed.
  [[nodiscard]] bool update_back_pressure(bool job_ends);
  [[nodiscard]] bool has_back_pressure() const { return back_pressure_; }

  /// Reads the remaining output in the ranks' pipes, and closes them.
  void finish(std::span<Rank> ranks);
  /// Prints the warnings about the logs, then the report on the attempt (output/report.h).
  void print_report(const Verdict& verdict, const std::vector<Rank>& ranks,
                    const Placement& placement);

 private:
  const Options& options_;
  std::string log_folder_;
  SharedOutput console_;
  LogWriter logs_;
  /// Errors before the first step, after their prefixes.
  std::vector<std::pair<std::string, std::string>> startup_errors_;
  dtrain::base::Clock::time_point startup_error_time_;  // of the first
  bool back_pressure_ = false;
};

}  // namespace launcher
