// Chooses the checkpoint to resume from: all ranks find and verify it together.
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

/// A checkpoint that was verified to the last byte.
struct Chosen {
  std::string path;
  format::Manifest manifest;
  std::vector<std::int64_t> steps = {};       ///< of all checkpoints beside it, newest first
  std::vector<std::int64_t> unreadable = {};  ///< of newer ones that the storage did not give
};

/// Takes a line for people about a checkpoint that is passed over.
using Notice = std::function<void(std::string_view)>;

/// Verifies one checkpoint; each rank reads its share of the files.
///
/// Collective: every rank of `group`.
/// Throws:     Error{checkpoint} on every rank, naming what is damaged or missing; StorageError if
///             the storage does not give it.
[[nodiscard]] Chosen choose(comm::ProcessGroup& group, const std::string& path);

/// The newest checkpoint of a folder that is whole; damaged ones, those that the storage does not
/// give, and those that an earlier start has passed over are named and passed over. Nothing if the
/// folder holds none.
///
/// strict:     refuses when the newest one is damaged.
/// earlier:    what an earlier start has passed over; equal on all ranks.
/// notice:     called on rank 0.
/// Collective: every rank of `group`.
/// Throws:     Error{checkpoint} on every rank if there are checkpoints and none is whole.
[[nodiscard]] std::optional<Chosen> choose_newest(comm::ProcessGroup& group,
                                                  const std::string& checkpoints, bool strict,
                                                  const Notice& notice,
                                                  const config::SkippedCheckpoints& earlier = {});

}  // namespace dtrain::checkpoint
