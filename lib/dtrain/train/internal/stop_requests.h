// Who may ask a run to save and stop, or only to save: signals, a time limit, a STOP file.
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>

#include "dtrain/base/clock.h"

namespace dtrain::train {

/// Checks the run folder and looks for its STOP file, once in the constructor and then five times a
/// second in a thread, so that a slow disk does not delay a step. The destructor waits for a check
/// in progress.
///
/// Threads: any number of callers.
class FolderMonitor {
 public:
  struct Options {
    /// Throws where the folder is no longer this job's; called from the thread. Empty: no check.
    std::function<void()> check = {};
    std::string stop_file = {};  ///< empty: none
  };

  /// Without a check and a stop file there is no thread.
  explicit FolderMonitor(Options options);

  /// Throws: what a check threw.
  void rethrow_failure() const;
  /// True once the stop file was seen.
  [[nodiscard]] bool stop_requested() const noexcept { return stop_requested_; }
  [[nodiscard]] const std::string& stop_file() const noexcept { return options_.stop_file; }

 private:
  void poll() noexcept;
  void run(const std::stop_token& stop);

  const Options options_;
  std::atomic<bool> stop_requested_ = false;
  mutable std::mutex mutex_;
  std::condition_variable_any stopped_;
  std::exception_ptr failure_;  // guarded by mutex_
  std::jthread thread_;         // last, so that it has ended before the rest is destroyed
};

/// While one of them lives, SIGTERM, SIGUSR1, SIGINT and, unless it was ignored (nohup), SIGHUP ask
/// this process to save and stop, and SIGUSR2 to save; their handlers set a flag, and acknowledge
/// the request. A second SIGINT or a SIGQUIT ends the process at once. The last
/// destructor restores the previous handlers.
///
/// Threads: one for each object; ranks that are threads of one process share its signals: all of
///          them see a stop, one of them a save.
class StopRequests {
 public:
  struct Options {
    double time_limit_seconds = 0;  ///< from construction; 0: none
    /// Its stop file asks to stop; nullptr: none. Must outlive the last call of wants_stop.
    const FolderMonitor* folder = nullptr;
    bool answers = false;  ///< says at once on standard error what the first request brings about
    bool has_launcher = false;  ///< which says so itself: only Ctrl-C is answered
  };

  explicit StopRequests(Options options);
  StopRequests(const StopRequests&) = delete;
  StopRequests& operator=(const StopRequests&) = delete;
  ~StopRequests();

  /// Returns whether this rank was asked to save and leave; once it was, that stays.
  [[nodiscard]] bool wants_stop();
  /// The same, but for the time limit, which is not looked at.
  [[nodiscard]] bool wants_stop_now();
  /// Returns whether this process was asked to save since the last call, on any of its threads.
  [[nodiscard]] bool take_save();

  /// The cause of this rank's stop: "SIGHUP", "--time-limit", "the file RUN/STOP"; empty: nothing.
  /// launcher_signal: what asked the launcher that sent SIGTERM; 0: unknown.
  [[nodiscard]] std::string reason(int launcher_signal) const;

 private:
  Options options_;
  base::Clock::time_point start_ = base::Clock::now();
  std::string reason_;
};

}  // namespace dtrain::train
