// The rank's end of the line to its launcher (docs/dtrun.md, "The control descriptor").
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "dtrain/base/activity.h"

namespace dtrain::base {

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
  /// Names the file that asks for the job to be started again: dtrun writes it if the job is asked to
  /// stop when it would restart it.
  void requeue_file(const std::string& path);
  /// What this rank says it is doing.
  [[nodiscard]] Activity& activity() noexcept { return activity_; }
  /// From now on `calls` gives the lines of the answer that tell of communication; empty: none. It
  /// is called from the listening thread. Returns when an earlier one is not in use any more.
  void answer_with(std::function<std::string()> calls);
  /// From now on dtrun's order to end is not obeyed: this rank ends with an error of its own, which
  /// dtrun is to hear, however long its groups take to close. dtrun's --abort-grace bounds that.
  void disobey() noexcept { obeys_ = false; }
  /// Answers without being asked, for a rank that is about to end.
  void send_records();
  /// The width of dtrun's terminal since it was last resized; 0: it was not.
  [[nodiscard]] std::int64_t columns() const noexcept { return columns_; }
  /// The signal that asked dtrun to stop the job, which the ranks got as SIGTERM; 0: none.
  [[nodiscard]] int stop_signal() const noexcept { return stop_signal_; }
  /// Seconds from the failure after which the job was started again to its recovery
  /// (docs/dtrun.md), once dtrun has told; 0: nothing new.
  [[nodiscard]] double take_recovery() noexcept { return recovery_.exchange(0); }

 private:
  void send(std::string_view text) const noexcept;
  void listen();
  void obey(std::string_view line);
  void tell_whether_busy();

  int control_fd_;
  int stop_fd_ = -1;  // readable once the destructor wants the thread back
  Activity activity_;
  std::uint64_t told_count_ = 0;
  std::atomic<bool> obeys_ = true;
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
