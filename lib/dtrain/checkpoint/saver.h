// Saves while training goes on: every rank writes its own part, rank 0 commits.
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
  std::string checkpoints;          ///< folder; made when it is first needed
  format::Manifest manifest = {};   ///< what all checkpoints of this run say alike
  store::Retention retention = {};  ///< of older ones, after each commit
  double bytes_per_second = 0;      ///< of each rank's writing while training goes on; 0: no limit
};

/// The progress of a run when it saves.
struct SavePoint {
  std::int64_t step = 0;
  std::int64_t samples = 0;
  std::int64_t tokens = 0;
  std::string history = "{}";   ///< as the manifest's
  std::int64_t best_step = -1;  ///< of the checkpoint that stays, whatever its age; negative: none
};

/// How a save ended. Ranks agree on step, path and error; rank 0 alone knows the rest.
struct SaveReport {
  std::int64_t step = 0;
  std::string path = {};
  std::string error = {};    ///< empty: it is committed
  std::int64_t bytes = 0;    ///< of all ranks' files; on rank 0
  double stall_seconds = 0;  ///< training stood still for the save
  double seconds = 0;        ///< from the start of the save to its commit
  std::string warning = {};  ///< it is committed, but something else went wrong
};

/// Takes a copy of this rank's part of the state into memory of its own, which is the only time
/// training stands still, and writes it in a thread. When all ranks have written, rank 0 gathers
/// what they wrote, writes the manifest and commits, again in a thread.
///
/// There is one save at a time. Its steps that need all ranks happen in collective calls, once no
/// rank is busy any more.
///
/// A save that fails on any rank is given up as a whole: what it wrote is removed, and training can
/// go on. Destruction ends a save that is being written without a commit; it waits for
/// a commit under way.
///
/// Threads: one caller.
class Saver {
 public:
  /// `world` and `files` must outlive this.
  Saver(comm::ProcessGroup& world, base::FileSystem& files, SaverOptions options);
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;
  ~Saver();

  /// Allocates the copies of `state` now, so that begin() need not wait for finish().
  ///
  /// Collective: every rank of `world`.
  void stage(const State& state);

  /// Starts a save; none may be under way. Without stage(), the state must not change before
  /// finish().
  ///
  /// Collective: every rank of `world`, with the same point.
  /// Async:      returns when `state` may change, which is before anything is written.
  void begin(const SavePoint& point, const State& state);

  /// Returns whether a save is under way; equal on all ranks.
  [[nodiscard]] bool is_saving() const { return phase_ != Phase::idle; }
  /// Returns whether this rank's thread works. Once false, it stays so until the next advance().
  [[nodiscard]] bool is_busy() const;
  /// Prints a line once a minute about a save that this rank's thread has not finished.
  void warn_if_slow();

  /// Takes the save under way to its next phase; returns its report when it has ended.
  ///
  /// Collective: every rank of `world`, when no rank is busy.
  [[nodiscard]] std::optional<SaveReport> advance();

  /// Waits for the save under way, but not much longer than `patience`; its report, as advance()
  /// gives it, if it has ended.
  ///
  /// Collective: every rank of `world`.
  [[nodiscard]] std::optional<SaveReport> finish_within(base::Seconds patience);

  /// Waits for the save under way, which then writes as fast as it goes.
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

  [[nodiscard]] bool leads() const { return world_.rank() == 0; }
  [[nodiscard]] std::string folder() const;
  [[nodiscard]] Written write(const std::vector<store::PieceBytes>& pieces) const;
  [[nodiscard]] Committed commit() const;
  [[nodiscard]] std::string prune() const;
  void give_up() const;
  void collect();
  [[nodiscard]] SaveReport end();

  comm::ProcessGroup& world_;
  base::FileSystem& files_;
  SaverOptions options_;
  std::optional<Staging> staging_;

  // The save under way.
  Phase phase_ = Phase::idle;
  SaveReport report_;
  base::Clock::time_point start_;
  base::ReportTimer slow_;
  format::Manifest manifest_;
  std::int64_t best_step_ = -1;
  std::stop_source stop_;
  std::atomic<bool> hurry_ = false;  // somebody waits: no limit on writing
  // Last, so that their threads end before what they use.
  std::future<Written> written_;
  std::future<Committed> committed_;  // rank 0
};

}  // namespace dtrain::checkpoint
