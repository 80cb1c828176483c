// Files of a checkpoint that is being saved: writes, commits or discards them, without
// communication.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <stop_token>
#include <string>
#include <utility>

#include "dtrain/base/io/file_system.h"
#include "dtrain/checkpoint/format/manifest.h"
#include "dtrain/checkpoint/store/commit.h"
#include "dtrain/checkpoint/store/shard_writer.h"

namespace dtrain::checkpoint::store {

/// Options of a PendingCheckpoint.
struct PendingCheckpointOptions {
  std::string checkpoints;         ///< folder of the run's checkpoints, created if missing
  format::Manifest manifest = {};  ///< without contents
  Retention retention = {};        ///< policy for older checkpoints, applied after the commit
  std::int64_t rank = 0;
  std::int64_t num_ranks = 1;
  double bytes_per_second = 0;  ///< write limit of this rank; 0: no limit
};

/// The result of PendingCheckpoint::write().
struct WriteResult {
  format::Contents contents;  ///< the written files
  std::string error;          ///< empty on success
};

/// The result of PendingCheckpoint::commit().
struct CommitResult {
  std::string error;    ///< empty if the checkpoint was committed
  std::string warning;  ///< a problem after the commit
};

/// One checkpoint in its temporary folder. Every rank writes its files; then one rank adds the
/// contents of all and commits, or discards the folder if a rank failed.
///
/// Threads: one at a time; folder(), cancel() and lift_limit() also while another one writes,
///          commits or discards.
class PendingCheckpoint {
 public:
  /// `files` must outlive this object.
  PendingCheckpoint(base::FileSystem& files, PendingCheckpointOptions options)
      : files_(files), options_(std::move(options)) {}

  /// The temporary folder.
  [[nodiscard]] std::string folder() const;

  /// Writes this rank's files; partial files remain on failure.
  [[nodiscard]] WriteResult write(std::span<const PieceBytes> pieces) const;
  /// Ends write() with an error; never undone.
  void cancel() { stop_.request_stop(); }
  /// Lifts the write limit.
  void lift_limit() { is_unlimited_ = true; }

  /// Adds the files that a rank has written.
  ///
  /// Throws: as format::merge.
  void add(const format::Contents& part) { format::merge(options_.manifest.contents, part); }
  /// Returns the total size of the added files.
  [[nodiscard]] std::int64_t bytes() const { return format::bytes_in(options_.manifest.contents); }
  /// Commits the added files and prunes older checkpoints; discards the files on failure.
  [[nodiscard]] CommitResult commit() const;
  /// Removes the folder. If that fails, the next start removes it.
  void discard() const;

 private:
  [[nodiscard]] std::string prune() const;

  base::FileSystem& files_;
  PendingCheckpointOptions options_;
  std::stop_source stop_;
  std::atomic<bool> is_unlimited_ = false;
};

}  // namespace dtrain::checkpoint::store
