// A rank's control connection to dtrun (docs/guide/dtrun.md, "The control descriptor"), and the
// current activity that it reports.
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace dtrain::base {

/// The phase of work that a process is in, for hang reports.
///
/// Threads: one writes, any read.
class Activity {
 public:
  /// phase: a string with static storage, e.g. "the update"; block: the current block, -1: none.
  void enter(const char* phase, std::int64_t block = -1) noexcept {
    phase_.store(phase, std::memory_order_relaxed);
    block_.store(block, std::memory_order_relaxed);
    count_.fetch_add(1, std::memory_order_relaxed);
  }
  /// step: the number of completed steps.
  void finish_step(std::int64_t step) noexcept { step_.store(step, std::memory_order_relaxed); }

  /// The number of phases entered and left; unchanged while there is no progress.
  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
  /// True while a LongPhase exists.
  [[nodiscard]] bool is_long() const noexcept { return long_phase_ != nullptr; }
  /// "in the backward pass, block 3, of step 12", "in saving after step 12".
  [[nodiscard]] std::string describe() const {
    const std::int64_t block = block_.load(std::memory_order_relaxed);
    const std::int64_t step = step_.load(std::memory_order_relaxed);
    if (const char* phase = long_phase_.load(std::memory_order_relaxed)) {
      return fmt::format("in {} after step {}", phase, step);
    }
    return fmt::format("in {}{} of step {}", phase_.load(std::memory_order_relaxed),
                       block < 0 ? std::string() : fmt::format(", block {},", block), step + 1);
  }

 private:
  friend class LongPhase;
  const char* exchange_long_phase(const char* phase) noexcept {
    count_.fetch_add(1, std::memory_order_relaxed);
    return long_phase_.exchange(phase, std::memory_order_relaxed);
  }

  std::atomic<const char*> phase_ = "the start";
  std::atomic<const char*> long_phase_ = nullptr;  // the innermost one
  std::atomic<std::int64_t> block_ = -1;           // none
  std::atomic<std::int64_t> step_ = 0;
  std::atomic<std::uint64_t> count_ = 0;
};

/// Marks a phase of unbounded duration, such as a save on a slow disk: while it exists, a lack of
/// progress does not count as a hang. Phases entered meanwhile do not end it.
///
/// Threads: the one that writes the activity. Objects are destroyed in reverse order of
///          construction.
class LongPhase {
 public:
  /// phase: a string with static storage. `activity` must outlive this.
  LongPhase(Activity& activity, const char* phase) noexcept
      : activity_(activity), outer_(activity.exchange_long_phase(phase)) {}
  ~LongPhase() { activity_.exchange_long_phase(outer_); }
  LongPhase(const LongPhase&) = delete;
  LongPhase& operator=(const LongPhase&) = delete;

 private:
  Activity& activity_;
  const char* outer_;  // nullptr: none
};

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
  /// Sets the function that formats the communication lines of a hang report; empty: none. It is
  /// called from the listening thread. Returns once the previous function is no longer in use.
  void set_call_report(std::function<std::string()> calls);
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
  void send_heartbeat();

  int control_fd_;
  int stop_fd_ = -1;  // eventfd by which the destructor stops the thread
  Activity activity_;
  std::uint64_t reported_count_ = 0;
  std::atomic<bool> obeys_abort_ = true;
  std::atomic<bool> sent_last_ = false;
  std::mutex calls_mutex_;
  std::function<std::string()> calls_;
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
