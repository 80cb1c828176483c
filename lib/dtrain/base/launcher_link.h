// The rank's end of the line to its launcher (docs/guide/dtrun.md, "The control descriptor"), and the
// phase of work that it reports.
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

/// The phase that a process is in, which it stores as it goes, and which is read to tell what a
/// process that makes no progress was doing.
///
/// Threads: one writes, any read.
class Activity {
 public:
  /// phase: a string with static storage, "the update"; block: the block it works on, -1: none.
  void enter(const char* phase, std::int64_t block = -1) noexcept {
    phase_.store(phase, std::memory_order_relaxed);
    block_.store(block, std::memory_order_relaxed);
    count_.fetch_add(1, std::memory_order_relaxed);
  }
  /// step: the number of completed steps.
  void finish_step(std::int64_t step) noexcept { step_.store(step, std::memory_order_relaxed); }

  /// The number of phases entered and left: unchanged as long as there is no progress.
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

/// A phase whose length the process does not control, such as a save on a slow disk: while it
/// exists, a lack of progress is no sign of a hang. Phases entered meanwhile do not end it.
///
/// Threads: the one that writes the activity. Destroyed in reverse order of construction.
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

/// Listens for dtrun's word that another rank has failed, and reports progress to it.
///
/// On `abort RANK REASON` or `leave`, and when the launcher is gone, the process ends at once with
/// the status of ErrorKind::comm: no destructor runs and nothing is saved, because the others will
/// not answer any more.
///
/// It answers dtrun's `records` from its own thread, so also while the rest of the process is
/// stuck, and says once a second whether activity() has advanced.
///
/// The descriptor stays open, for tell_error. One of -1 means there is no launcher; then nothing is
/// done.
///
/// Threads: one caller; the listening thread takes no signals.
class LauncherLink {
 public:
  explicit LauncherLink(int control_fd);
  ~LauncherLink();
  LauncherLink(const LauncherLink&) = delete;
  LauncherLink& operator=(const LauncherLink&) = delete;

  /// Reports that `step` steps are done. Never waits: dropped when the launcher does not read.
  /// waited: seconds that this rank has waited for others since the start.
  void progress(std::int64_t step, double waited) noexcept;
  /// Reports that the checkpoint of `step` is committed; never waits either.
  /// advice: what dtrun tells of it if the job fails; one line.
  /// run: names the run among those of a script; one word.
  void committed(std::int64_t step, std::string_view run, std::string_view advice) noexcept;
  /// Names the file that asks for the job to be started again: dtrun writes it if the job is asked
  /// to stop when it would restart it.
  void requeue_file(const std::string& path);
  /// What this rank says it is doing.
  [[nodiscard]] Activity& activity() noexcept { return activity_; }
  /// From now on `calls` gives the lines of the answer that tell of communication; empty: none. It
  /// is called from the listening thread. Returns when an earlier one is not in use any more.
  void answer_with(std::function<std::string()> calls);
  /// From now on dtrun's order to end is not obeyed: this rank ends with an error of its own, which
  /// dtrun is to hear, however long its groups take to close. dtrun's --abort-grace bounds that.
  void disobey() noexcept { obeys_ = false; }
  /// Answers for the last time, without being asked: this rank fails. What it is asked later it
  /// does not answer, since by then its calls have ended: an answer that does not fit into the line
  /// is lost.
  void send_last_records();
  /// The width of dtrun's terminal since it was last resized; 0: it was not.
  [[nodiscard]] std::int64_t columns() const noexcept { return columns_; }
  /// The signal that asked dtrun to stop the job, which the ranks got as SIGTERM; 0: none.
  [[nodiscard]] int stop_signal() const noexcept { return stop_signal_; }
  /// Seconds from the failure after which the job was started again to its recovery
  /// (docs/guide/dtrun.md), once dtrun has told; 0: nothing new.
  [[nodiscard]] double take_recovery() noexcept { return recovery_.exchange(0); }

 private:
  void send(std::string_view text) const noexcept;
  /// end: the last word of the answer.
  void send_records(std::string_view end);
  void listen();
  void obey(std::string_view line);
  void tell_whether_busy();

  int control_fd_;
  int stop_fd_ = -1;  // readable once the destructor wants the thread back
  Activity activity_;
  std::uint64_t told_count_ = 0;
  std::atomic<bool> obeys_ = true;
  std::atomic<bool> sent_last_ = false;
  std::mutex calls_mutex_;
  std::function<std::string()> calls_;
  std::atomic<std::int64_t> columns_ = 0;
  std::atomic<int> stop_signal_ = 0;
  std::atomic<double> recovery_ = 0;  // seconds
  std::thread thread_;
};

/// Whose error it is: this rank's own, or that of all ranks.
enum class ErrorScope { own, all };

/// Hands dtrun the last line of this process, which prints a line common to all ranks once. `all`:
/// found by one rank, but every rank would end so.
///
/// Returns: whether dtrun has it; else the caller prints it.
[[nodiscard]] bool tell_error(int status, std::string_view line, ErrorScope scope) noexcept;
/// Tells dtrun to print this rank's later standard output without "[RANK] ", for a result that
/// programs read. Call it before the result is written.
void tell_plain_output() noexcept;

/// Returns whether tell_error reaches a dtrun.
[[nodiscard]] bool has_launcher() noexcept;

}  // namespace dtrain::base
