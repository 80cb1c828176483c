// Tracks the run's latest checkpoint and reports it to the launcher.
#pragma once

#include <cstdint>
#include <string>

#include "dtrain/base/launcher_link.h"

namespace dtrain::train {

/// Tracks the latest committed checkpoint and tells the launcher how to resume from it.
///
/// Threads: one.
class LatestCheckpoint {
 public:
  struct Options {
    bool is_leader = true;  ///< rank 0, which notifies the launcher
    /// Step of the checkpoint that the run resumes from, if it is this run's; negative: none.
    std::int64_t saved_step = -1;
    std::string saved_path = {};  ///< checkpoint that the run resumes from, of this or another run
    std::string resume_flags = {};  ///< flags with which the same command resumes
    std::string run_name = {};      ///< store::run_key, for the launcher
  };

  /// `link` must outlive this.
  LatestCheckpoint(base::LauncherLink& link, const Options& options);

  /// Sets the latest checkpoint, which this run has committed.
  void set(std::int64_t step, const std::string& path);
  /// Reports the latest checkpoint to the launcher. At the start of a run, call it after the run
  /// folder is locked. No-op for another run's checkpoint.
  void notify_launcher();
  /// If the checkpoint no longer exists, withdraws the advice to resume from it that the launcher
  /// would print.
  void notify_failure();

  /// The latest checkpoint, or the checkpoint that the run resumes from; empty if there is none.
  [[nodiscard]] const std::string& path() const { return path_; }
  /// Names the run's latest checkpoint and the flags that resume from it; empty if this run has no
  /// checkpoint or the checkpoint no longer exists.
  [[nodiscard]] std::string how_to_continue() const;

 private:
  void send(const std::string& advice);

  base::LauncherLink& link_;
  Options options_;
  std::int64_t step_;
  std::string path_;
  bool is_own_;  // false if another run wrote it
};

}  // namespace dtrain::train
