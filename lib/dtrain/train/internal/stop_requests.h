// Requests to save, or to save and stop: signals, a time limit, a STOP file.
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

/// Polls the run folder and its STOP file, in the constructor and then five times a second in a
/// thread, so that a slow disk does not delay a step. The destructor waits for a check in progress.
///
/// Threads: any number of callers.
class FolderMonitor {
 public:
  struct Options {
    /// Throws if the folder is no longer this job's; called from the thread. May be empty.
    std::function<void()> check = {};
    std::string stop_file = {};  ///< empty: no stop file
  };

  /// Starts no thread without a check and a stop file.
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

/// During the lifetime of an object, SIGTERM, SIGUSR1, SIGINT and, unless it was ignored (nohup),
/// SIGHUP request a save and stop, and SIGUSR2 a save; the handlers set a flag and acknowledge the
/// request. A second SIGINT or a SIGQUIT ends the process at once. The last destructor restores the
/// previous handlers.
///
/// Threads: one per object. Ranks that are threads of one process share its signals: all of them see
///          a stop request, one of them a save request.
class StopRequests {
 public:
  struct Options {
    double time_limit_seconds = 0;  ///< from construction; 0: no limit
    /// Its stop file requests a stop; may be null. Must outlive the last call of wants_stop.
    const FolderMonitor* folder = nullptr;
    bool acknowledges = false;  ///< prints the effect of the first request to standard error
    bool has_launcher = false;  ///< the launcher acknowledges all requests but Ctrl-C
  };

  explicit StopRequests(Options options);
  StopRequests(const StopRequests&) = delete;
  StopRequests& operator=(const StopRequests&) = delete;
  ~StopRequests();

  /// True once this rank was requested to save and stop.
  [[nodiscard]] bool wants_stop();
  /// The same, ignoring the time limit.
  [[nodiscard]] bool wants_stop_now();
  /// True if this process was requested to save since the last call by any of its threads.
  [[nodiscard]] bool take_save_request();

  /// The cause of this rank's stop: "SIGHUP", "--time-limit", "the file RUN/STOP"; empty if there was
  /// no request. launcher_signal: received by the launcher that sent SIGTERM; 0: unknown.
  [[nodiscard]] std::string reason(int launcher_signal) const;

 private:
  Options options_;
  base::Clock::time_point start_ = base::Clock::now();
  std::string reason_;
};

}  // namespace dtrain::train
