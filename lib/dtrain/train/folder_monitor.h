// Polls the run folder beside training.
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>

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

}  // namespace dtrain::train
