// Saves checkpoints asynchronously: every rank writes its own part, rank 0 commits.
#pragma once

#include <cstdint>
#include <future>
#include <optional>
#include <string>

#include "dtrain/base/clock.h"
#include "dtrain/base/io/file_system.h"
#include "dtrain/base/log.h"
#include "dtrain/checkpoint/format/manifest.h"
#include "dtrain/checkpoint/state.h"
#include "dtrain/checkpoint/store/commit.h"
#include "dtrain/checkpoint/store/pending_checkpoint.h"
#include "dtrain/comm/process_group.h"

namespace dtrain::checkpoint {

/// Options of a Saver.
struct SaverOptions {
  std::string checkpoints;          ///< folder, created on first use
  format::Manifest manifest = {};   ///< fields common to all checkpoints of this run
  store::Retention retention = {};  ///< policy for older checkpoints, applied after each commit
  double bytes_per_second = 0;      ///< write limit per rank during training; 0: no limit
};

/// The progress of a run at a save.
struct SavePoint {
  std::int64_t step = 0;
  std::int64_t samples = 0;
  std::int64_t tokens = 0;
  std::string history = "{}";   ///< Manifest::history
  std::int64_t best_step = -1;  ///< step of the best checkpoint, never pruned; negative: none
};

/// The result of a save. step, path and error are equal on all ranks; the rest is valid on rank 0.
struct SaveReport {
  std::int64_t step = 0;
  std::string path = {};
  std::string error = {};    ///< empty if the save was committed
  std::int64_t bytes = 0;    ///< total size of all ranks' files
  double stall_seconds = 0;  ///< time that training was blocked
  double seconds = 0;        ///< from the start of the save to its commit
  std::string warning = {};  ///< a problem after the commit
};

/// Copies this rank's part of the state into a staging buffer and writes it in a background thread;
/// only the copy blocks training. When all ranks have written, rank 0 gathers their file lists,
/// writes the manifest and commits, again in a background thread.
///
/// At most one save is in progress. Collective calls advance it from phase to phase, while no
/// rank's background thread is busy.
///
/// A save that fails on any rank is discarded on all: its files are removed, and training can
/// continue. The destructor cancels a save that is still being written; it waits for a commit in
/// progress.
///
/// Threads: one caller.
class Saver {
 public:
  /// `world` and `files` must outlive this object.
  Saver(comm::ProcessGroup& world, base::FileSystem& files, SaverOptions options);
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;
  ~Saver();

  /// Allocates the staging buffer for `state`, which makes saves asynchronous.
  ///
  /// Collective: every rank of `world`.
  void stage(const State& state);

  /// Starts a save; none may be in progress.
  ///
  /// Collective: every rank of `world`, with the same point.
  /// Async:      returns before anything is written. After stage(), `state` may change on return;
  ///             without stage(), it must not change before finish() returns.
  void begin(const SavePoint& point, const State& state);

  /// Returns whether a save is in progress; equal on all ranks.
  [[nodiscard]] bool is_saving() const { return phase_ != Phase::idle; }
  /// Returns whether this rank's background thread is working. Once false, the result stays false
  /// until the next advance().
  [[nodiscard]] bool is_busy() const;
  /// Logs a warning once a minute while this rank's background thread is working.
  void warn_if_slow();

  /// Advances the save to its next phase; returns the report when the save has ended.
  ///
  /// Collective: every rank of `world`, when no rank is busy.
  [[nodiscard]] std::optional<SaveReport> advance();

  /// Waits for the save, at most about `patience`; returns the report if the save has ended.
  ///
  /// Collective: every rank of `world`.
  [[nodiscard]] std::optional<SaveReport> finish_within(base::Seconds patience);

  /// Waits for the save, with its write limit lifted.
  ///
  /// Collective: every rank of `world`.
  [[nodiscard]] SaveReport finish();

 private:
  enum class Phase { idle, writing, committing };

  [[nodiscard]] bool is_rank_0() const { return world_.rank() == 0; }
  void collect();
  [[nodiscard]] SaveReport end();

  comm::ProcessGroup& world_;
  base::FileSystem& files_;
  SaverOptions options_;
  std::optional<StagingBuffer> staging_;

  // The save in progress.
  Phase phase_ = Phase::idle;
  SaveReport report_;
  base::Clock::time_point start_;
  base::ReportTimer slow_;
  std::optional<store::PendingCheckpoint> pending_;
  // Last members: their threads end before the members that they use are destroyed.
  std::future<store::WriteResult> written_;
  std::future<store::CommitResult> committed_;  // rank 0 only
};

}  // namespace dtrain::checkpoint
