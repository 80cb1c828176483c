// Who may ask a run to save and stop, or only to save: signals, a time limit, a STOP file.
#pragma once

#include <string>

#include "dtrain/base/clock.h"

namespace dtrain::train {

/// What this rank was asked for since the last poll.
struct Requests {
  bool stop = false;  ///< save and leave
  bool save = false;  ///< save and go on
};

/// While it lives, SIGTERM, SIGUSR1 and SIGINT ask this process to save and stop, and SIGUSR2 to
/// save; their handlers set a flag, and answer a SIGINT. A second SIGINT ends the process at once.
///
/// Threads: one for each object; ranks that are threads of one process share its signals.
class StopRequests {
 public:
  struct Options {
    double time_limit_seconds = 0;  ///< from construction; 0: none
    std::string stop_file;          ///< its appearance asks to stop; empty: not looked for
    bool answers = false;           ///< says at once on standard error what Ctrl-C brings about
  };

  explicit StopRequests(Options options);
  StopRequests(const StopRequests&) = delete;
  StopRequests& operator=(const StopRequests&) = delete;
  ~StopRequests();

  /// A stop once asked for stays; a save is told once.
  [[nodiscard]] Requests poll();

  /// What asked this rank to stop: "SIGTERM", "--time-limit", "the file RUN/STOP"; empty: nothing.
  [[nodiscard]] const std::string& reason() const { return reason_; }

 private:
  Options options_;
  base::Clock::time_point start_ = base::Clock::now();
  std::string reason_;
};

}  // namespace dtrain::train
