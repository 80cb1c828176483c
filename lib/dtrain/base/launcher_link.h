// A rank's control connection to dtrun (docs/guide/dtrun.md, "The control descriptor").
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <thread>

#include "dtrain/base/activity.h"

namespace dtrain::base {

/// Executes dtrun's commands, such as the abort after another rank has failed, and reports progress
/// to dtrun.
///
/// On `abort RANK REASON` or `leave`, and when the connection to dtrun closes, the process ends at
/// once with the status of ErrorKind::comm: no destructor runs and nothing is saved, because the
/// other ranks no longer communicate.
///
/// A listening thread answers dtrun's `records`, even while all other threads hang, and sends a
/// heartbeat once a second if activity() has advanced.
///
/// The destructor leaves the descriptor open, for send_error_to_launcher. All calls are no-ops if
/// the descriptor is -1: there is no launcher.
///
/// Threads: one caller; the listening thread blocks all signals.
class LauncherLink {
 public:
  explicit LauncherLink(int control_fd);
  ~LauncherLink();
  LauncherLink(const LauncherLink&) = delete;
  LauncherLink& operator=(const LauncherLink&) = delete;

  /// Reports the number of completed steps; never blocks. The report is dropped if dtrun does not
  /// read.
  /// waited: seconds that this rank has spent waiting for others since the start.
  void progress(std::int64_t step, double waited) noexcept;
  /// Reports that the checkpoint of `step` is committed; never blocks.
  /// advice: what dtrun prints if the job fails; one line.
  /// run: the run's name, one word; a script may have several runs.
  void committed(std::int64_t step, std::string_view run, std::string_view advice) noexcept;
  /// Reports the path of the requeue file, which dtrun writes if the job is stopped instead of
  /// restarted.
  void requeue_file(const std::string& path);
  /// The activity that this rank reports.
  [[nodiscard]] Activity& activity() noexcept { return activity_; }
  /// Ignores dtrun's abort command from now on: this rank is failing and reports its own error
  /// after closing its groups. dtrun's --abort-grace limits how long that may take.
  void ignore_abort() noexcept { obeys_abort_ = false; }
  /// Sends a last report without a request, because this rank is failing. Later requests are
  /// ignored, since the rank's calls will have ended by then. A report that exceeds the socket
  /// buffer is lost.
  void send_last_records();
  /// The width of dtrun's terminal after its last resize; 0: never resized.
  [[nodiscard]] std::int64_t columns() const noexcept { return columns_; }
  /// The signal with which the user asked dtrun to stop the job; dtrun sends SIGTERM to the ranks.
  /// 0: none.
  [[nodiscard]] int stop_signal() const noexcept { return stop_signal_; }
  /// Seconds from the last failure to the job's recovery (docs/guide/dtrun.md), once dtrun has
  /// reported it; 0: nothing new.
  [[nodiscard]] double take_recovery() noexcept { return recovery_.exchange(0); }

 private:
  void send(std::string_view text) const noexcept;
  /// end: the report's last line.
  void send_records(std::string_view end);
  void listen();
  void handle_command(std::string_view line);

  int control_fd_;
  int stop_fd_ = -1;  // eventfd by which the destructor stops the thread
  Activity activity_;
  std::atomic<bool> obeys_abort_ = true;
  std::atomic<bool> sent_last_ = false;
  std::atomic<std::int64_t> columns_ = 0;
  std::atomic<int> stop_signal_ = 0;
  std::atomic<double> recovery_ = 0;  // seconds
  std::thread thread_;
};

/// Scope of an error: this rank alone, or all ranks.
enum class ErrorScope { own, all };

/// Sends this process's error line to dtrun, which prints a line common to all ranks once. scope:
/// all if every rank would fail with this error.
///
/// Returns: true if dtrun has received it; otherwise the caller must print it.
[[nodiscard]] bool send_error_to_launcher(int status, std::string_view line,
                                          ErrorScope scope) noexcept;
/// Asks dtrun to print this rank's later standard output without the "[RANK] " prefix, for
/// machine-readable results. Call it before writing the result.
void request_plain_output() noexcept;

/// Returns whether this process has a connection to dtrun.
[[nodiscard]] bool has_launcher() noexcept;

}  // namespace dtrain::base
