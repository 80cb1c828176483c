// Saves checkpoints asynchronously: every rank writes its own part, rank 0 commits.
#pragma once

#include <atomic>
#include <cstdint>
#include <future>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/io/file_system.h"
#include "dtrain/base/log.h"
#include "dtrain/checkpoint/format/manifest.h"
#include "dtrain/checkpoint/state.h"
#include "dtrain/checkpoint/store/commit.h"
#include "dtrain/comm/process_group.h"

namespace dtrain::checkpoint {

struct SaverOptions {
  std::string checkpoints;          ///< folder, created on first use
  format::Manifest manifest = {};   ///< fields common to all checkpoints of this run
  store::Retention retention = {};  ///< of older checkpoints, applied after each commit
  double bytes_per_second = 0;      ///< write limit per rank during training; 0: none
};

/// The progress of a run at a save.
struct SavePoint {
  std::int64_t step = 0;
  std::int64_t samples = 0;
  std::int64_t tokens = 0;
  std::string history = "{}";   ///< Manifest::history
  std::int64_t best_step = -1;  ///< of a checkpoint to keep at any age; negative: none
};

/// The result of a save. step, path and error are equal on all ranks; the rest is valid on rank 0.
struct SaveReport {
  std::int64_t step = 0;
  std::string path = {};
  std::string error = {};    ///< empty if the save was committed
  std::int64_t bytes = 0;    ///< in all ranks' files
  double stall_seconds = 0;  ///< for which training was blocked
  double seconds = 0;        ///< from the start of the save to its commit
  std::string warning = {};  ///< a problem after the commit
};

/// Copies this rank's part of the state into a staging buffer, which is the only time that training
/// is blocked, and writes it in a background thread. When all ranks have written, rank 0 gathers
/// their file lists, writes the manifest and commits, again in a thread.
///
/// At most one save is in progress. It moves from phase to phase in collective calls, made when no
/// rank's thread is busy.
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

  /// Starts a save; none may be in progress. Without stage(), the state must not change before
  /// finish() returns.
  ///
  /// Collective: every rank of `world`, with the same point.
  /// Async:      returns before anything is written; with stage(), `state` may change then.
  void begin(const SavePoint& point, const State& state);

  /// Returns whether a save is in progress; equal on all ranks.
  [[nodiscard]] bool is_saving() const { return phase_ != Phase::idle; }
  /// Returns whether this rank's thread is working. Once false, stays false until the next
  /// advance().
  [[nodiscard]] bool is_busy() const;
  /// Logs a warning once a minute while this rank's thread is working.
  void warn_if_slow();

  /// Advances the save to its next phase; returns its report once it has ended.
  ///
  /// Collective: every rank of `world`, when no rank is busy.
  [[nodiscard]] std::optional<SaveReport> advance();

  /// Waits for the save for about `patience` at most; returns its report if it has ended.
  ///
  /// Collective: every rank of `world`.
  [[nodiscard]] std::optional<SaveReport> finish_within(base::Seconds patience);

  /// Waits for the save, lifting its write limit.
  ///
  /// Collective: every rank of `world`.
  [[nodiscard]] SaveReport finish();

 private:
  enum class Phase { idle, writing, committing };
  struct Written {
    format::Contents contents;
    std::string error;
  };
  struct Committed {
    std::string error;
    std::string warning;
  };

  [[nodiscard]] bool is_rank_0() const { return world_.rank() == 0; }
  [[nodiscard]] std::string folder() const;
  [[nodiscard]] Written write(const std::vector<store::PieceBytes>& pieces) const;
  [[nodiscard]] Committed commit() const;
  [[nodiscard]] std::string prune() const;
  void discard() const;
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
  format::Manifest manifest_;
  std::int64_t best_step_ = -1;
  std::stop_source stop_;
  std::atomic<bool> unlimited_ = false;  // the write limit is lifted
  // Last members, so that their threads end before what they use is destroyed.
  std::future<Written> written_;
  std::future<Committed> committed_;  // rank 0 only
};

}  // namespace dtrain::checkpoint
