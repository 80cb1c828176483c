// SIGINT, SIGTERM and SIGHUP as an exception, so that long work of the front end leaves no file.
#pragma once

namespace dtrain::app {

/// A signal that asks to stop came.
struct Stopped {
  int signal;
};

/// While it lives, each of these signals is noted once; a second one ends the process. Those that
/// the process ignored stay ignored.
///
/// Threads: one at a time in the process.
class StopSignals {
 public:
  StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  ~StopSignals();

  /// Throws: Stopped if a signal came.
  static void check();
};

/// Ends the process by the signal, as if nobody had noted it; returns the status where it lives on.
///
/// REQUIRES: no StopSignals is alive.
int end_by(const Stopped& stopped);

}  // namespace dtrain::app
