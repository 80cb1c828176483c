// The rank's end of the line to its launcher (docs/dtrun.md, "The control descriptor").
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>
#include <thread>

namespace dtrain::base {

/// Listens for dtrun's word that another rank has failed, and reports progress to it.
///
/// On `abort RANK REASON` or `leave`, and when the launcher is gone, the process ends at once with
/// the status of ErrorKind::comm: no destructor runs and nothing is saved, because the others will
/// not answer any more.
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
  void progress(std::int64_t step) noexcept;
  /// Reports that the checkpoint of `step` is committed; never waits either.
  void committed(std::int64_t step) noexcept;
  /// The width of dtrun's terminal since it was last resized; 0: it was not.
  [[nodiscard]] std::int64_t columns() const noexcept { return columns_; }
  /// Seconds from the failure after which the job was started again to its recovery
  /// (docs/dtrun.md), once dtrun has told; 0: nothing new.
  [[nodiscard]] double take_recovery() noexcept { return recovery_.exchange(0); }

 private:
  void tell(const char* what, std::int64_t step) noexcept;
  void listen();
  void obey(std::string_view line);

  int control_fd_;
  int stop_fd_ = -1;  // readable once the destructor wants the thread back
  std::atomic<std::int64_t> columns_ = 0;
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
