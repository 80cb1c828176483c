// The rank's end of the line to its launcher (docs/dtrun.md, "The control descriptor").
#pragma once

#include <cstdint>
#include <thread>

namespace dtrain::base {

/// Listens for dtrun's word that another rank has failed, and reports progress to it.
///
/// On `abort RANK REASON`, and when the launcher is gone, the process ends at once with the status
/// of ErrorKind::comm: no destructor runs and nothing is saved, because the others will not answer
/// any more.
///
/// Owns the descriptor: closes it when destroyed. A descriptor of -1 means there is no launcher;
/// then nothing is done.
///
/// Threads: one caller; the listening thread takes no signals.
class LauncherLink {
 public:
  explicit LauncherLink(int control_fd);
  ~LauncherLink();
  LauncherLink(const LauncherLink&) = delete;
  LauncherLink& operator=(const LauncherLink&) = delete;

  /// Tells that `step` steps are done. Never waits: dropped when the launcher does not read.
  void progress(std::int64_t step) noexcept;
  /// Tells that the checkpoint of `step` stands; as progress.
  void committed(std::int64_t step) noexcept;

 private:
  void tell(const char* what, std::int64_t step) noexcept;
  void listen() const;

  int control_fd_;
  int stop_fd_ = -1;  // readable once the destructor wants the thread back
  std::thread thread_;
};

}  // namespace dtrain::base
