// Receives requests to save, or to save and stop: signals, a time limit, a STOP file.
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

/// Polls the run folder and its STOP file: once in the constructor, then five times per second in a
/// thread, so that a slow disk does not delay a step. The destructor waits for a check in progress.
///
/// Threads: any number of callers.
class FolderMonitor {
 public:
  struct Options {
    /// Throws if the folder no longer belongs to this job; called from the thread. May be empty.
    std::function<void()> check = {};
    std::string stop_file = {};  ///< empty: no stop file
  };

  /// Starts no thread if both options are empty.
  explicit FolderMonitor(Options options);

  /// Throws: the exception of a failed check; returns if none failed.
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

/// Handles signals during the lifetime of an object. SIGTERM, SIGUSR1, SIGINT and SIGHUP (unless
/// ignored, as by nohup) request a save and stop; SIGUSR2 requests a save. The handlers set a flag
/// and acknowledge the request. A second SIGINT or a SIGQUIT ends the process at once. The last
/// destructor restores the previous handlers.
///
/// Threads: one per object. If ranks are threads of one process, all of them see a stop request,
///          but only one sees a save request.
class StopRequests {
 public:
  struct Options {
    double time_limit_seconds = 0;  ///< from construction; 0: no limit
    /// Monitors the stop file; may be null. Must outlive the last call of wants_stop.
    const FolderMonitor* folder = nullptr;
    bool acknowledges = false;  ///< print the effect of the first request to standard error
    bool has_launcher = false;  ///< the launcher acknowledges all requests but Ctrl-C
  };

  explicit StopRequests(Options options);
  StopRequests(const StopRequests&) = delete;
  StopRequests& operator=(const StopRequests&) = delete;
  ~StopRequests();

  /// True once this rank was requested to save and stop.
  [[nodiscard]] bool wants_stop();
  /// As wants_stop(), but ignores the time limit.
  [[nodiscard]] bool wants_stop_now();
  /// Returns whether a save was requested since any thread of this process last called this.
  [[nodiscard]] bool take_save_request();

  /// Returns the cause of this rank's stop: "SIGHUP", "--time-limit", "the file RUN/STOP"; empty if
  /// there was no request. launcher_signal: the signal that made the launcher send SIGTERM; 0:
  /// unknown.
  [[nodiscard]] std::string reason(int launcher_signal) const;

 private:
  Options options_;
  base::Clock::time_point start_ = base::Clock::now();
  std::string reason_;
};

}  // namespace dtrain::train
