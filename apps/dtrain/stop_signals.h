// SIGINT, SIGTERM and SIGHUP as an exception, so that long work of the front end leaves no file.
#pragma once

namespace dtrain::app {

/// A signal that asks to stop came.
struct Stopped {
  int signal;
};

/// While it lives, the first of these signals is noted; a second one ends the process. Those that
/// the process ignores stay ignored.
///
/// Threads: one at a time in the process.
class StopSignals {
 public:
  StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  /// What the signals did before, they do again.
  ~StopSignals();

  /// Throws: Stopped if a signal came.
  static void check();
};

}  // namespace dtrain::app
