// Writes one rank's files of a checkpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dtrain/base/file_system.h"
#include "dtrain/checkpoint/format/manifest.h"
#include "dtrain/checkpoint/store/pace.h"

namespace dtrain::checkpoint::store {

/// A part of a global tensor, as bytes that stay where they are until the write is over.
struct PieceBytes {
  std::string tensor;  ///< its first word, up to a dot, names the file: "model", "optimizer"
  format::Dtype dtype = format::Dtype::f32;
  std::vector<std::int64_t> shape;  ///< of the whole tensor
  format::Box box;
  std::span<const std::byte> bytes;  ///< of the box, row-major
};

/// Which files of a checkpoint are meant.
struct Shard {
  std::string folder;
  std::int64_t rank = 0;
  std::int64_t num_ranks = 1;
};

/// Writes the pieces to model-00001-of-00002.safetensors and the like, each file synced and closed;
/// several pieces of one tensor go to files of their own. The folder must exist; its names are not
/// made durable yet.
///
/// Throws: what `files` and `pace` throw; the files may be there in part then.
[[nodiscard]] format::Contents write_shard(base::FileSystem& files, const Shard& shard,
                                           std::span<const PieceBytes> pieces, Pace pace);

}  // namespace dtrain::checkpoint::store
