// Progress bar and stop signals for long-running subcommands. A stop signal becomes an exception,
// so that the subcommand can remove its partial output.
#pragma once

#include <cstdint>
#include <string_view>

#include "dtrain/base/clock.h"

namespace dtrain::app {

/// A progress bar on standard error, redrawn at most ten times a second. No-op unless standard
/// error is a terminal. The destructor clears the line.
class ProgressBar {
 public:
  ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ~ProgressBar();

  /// total_bytes: 0 if unknown. note: text to display after the speed.
  void show(std::int64_t bytes, std::int64_t total_bytes, std::string_view note);

 private:
  bool is_on_terminal_;
  bool is_drawn_ = false;
  base::Clock::time_point begin_;
  double last_ = 0;  // seconds after begin_
};

/// Thrown after a stop signal.
struct Stopped {
  int signal;
};

/// Records the first SIGINT, SIGTERM or SIGHUP while alive; a second one ends the process. Ignored
/// signals stay ignored.
///
/// Threads: one at a time in the process.
class StopSignals {
 public:
  StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  /// Restores the previous handlers.
  ~StopSignals();

  /// Throws: Stopped if a signal has arrived.
  static void check();
};

}  // namespace dtrain::app
