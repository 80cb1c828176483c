// Tracks the run's latest checkpoint and notifies the launcher of it.
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
    std::int64_t saved_step =
        -1;                       ///< of this run's checkpoint that it resumes from; negative: none
    std::string saved_path = {};  ///< the checkpoint that the run resumes from, perhaps another's
    std::string resume_flags = {};  ///< flags with which the same command resumes
    std::string run_name = {};      ///< as store::run_key, for the launcher
  };

  /// `link` must outlive this.
  LatestCheckpoint(base::LauncherLink& link, const Options& options);

  /// Takes a checkpoint of this run that was committed.
  void set(std::int64_t step, const std::string& path);
  /// Notifies the launcher of the latest checkpoint, at the start once the run folder belongs to
  /// this launch. No-op for another run's checkpoint.
  void notify_launcher();
  /// Withdraws the launcher's advice if the checkpoint no longer exists.
  void notify_failure();

  /// The latest checkpoint, or the one that the run resumes from; empty if there is none.
  [[nodiscard]] const std::string& path() const { return path_; }
  /// Names the run's latest checkpoint and the flags that resume from it; empty if this run has no
  /// checkpoint, or no longer has it.
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
