// Chooses the checkpoint to resume from; all ranks together verify it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/checkpoint/format/manifest.h"
#include "dtrain/comm/process_group.h"
#include "dtrain/config/saved_run.h"

namespace dtrain::checkpoint {

/// A checkpoint whose every byte was verified.
struct VerifiedCheckpoint {
  std::string path;
  format::Manifest manifest;
  std::vector<std::int64_t> steps = {};  ///< steps of all checkpoints in its folder, newest first
  std::vector<std::int64_t> unreadable = {};  ///< steps of newer ones that the storage cannot read
};

/// Receives a message to the user about a skipped checkpoint.
using Notice = std::function<void(std::string_view)>;

/// Verifies one checkpoint; each rank reads its share of the files.
///
/// Collective: every rank of `group`.
/// Throws:     Error{checkpoint} on every rank, naming the damaged or missing file; StorageError if
///             the storage cannot read a file.
[[nodiscard]] VerifiedCheckpoint verify_checkpoint(comm::ProcessGroup& group,
                                                   const std::string& path);

/// Finds and verifies the newest intact checkpoint in a folder. Skips, with a notice, checkpoints
/// that are damaged, that the storage cannot read, or that an earlier start skipped. Empty if the
/// folder has no checkpoints.
///
/// strict:     fail if the newest one is damaged.
/// earlier:    checkpoints that an earlier start skipped; equal on all ranks.
/// notice:     called on rank 0.
/// Collective: every rank of `group`.
/// Throws:     Error{checkpoint} on every rank if there are checkpoints but none is intact.
[[nodiscard]] std::optional<VerifiedCheckpoint> choose_newest(
    comm::ProcessGroup& group, const std::string& checkpoints, bool strict, const Notice& notice,
    const config::SkippedCheckpoints& earlier = {});

}  // namespace dtrain::checkpoint
