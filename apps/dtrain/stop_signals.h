// SIGINT, SIGTERM and SIGHUP as an exception, so that long work of the front end leaves no file.
#pragma once

namespace dtrain::app {

/// Thrown after a stop signal.
struct Stopped {
  int signal;
};

/// Records the first of these signals while alive; a second one ends the process. Ignored signals
/// stay ignored.
///
/// Threads: one at a time in the process.
class StopSignals {
 public:
  StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  /// Restores the previous handlers.
  ~StopSignals();

  /// Throws: Stopped if a signal came.
  static void check();
};

}  // namespace dtrain::app
