// Writes one rank's files of a checkpoint.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/io/file_system.h"
#include "dtrain/checkpoint/format/manifest.h"

namespace dtrain::checkpoint::store {

/// Ends a save quietly because its process is ending.
struct Abandoned {};

/// Holds a writer back to a rate, and ends it early when its process wants to end.
class Pace {
 public:
  /// bytes_per_second: 0 for as fast as it goes.
  /// hurry:            lifts the limit once it is true; must outlive this; may be null.
  explicit Pace(double bytes_per_second = 0, std::stop_token stop = {},
                const std::atomic<bool>* hurry = nullptr)
      : bytes_per_second_(bytes_per_second), stop_(std::move(stop)), hurry_(hurry) {}

  /// Returns when `bytes` more are due, counted from construction.
  ///
  /// Throws: Abandoned within 50 ms of a request to stop.
  void spend(std::int64_t bytes);

 private:
  double bytes_per_second_;
  std::stop_token stop_;
  const std::atomic<bool>* hurry_;
  std::int64_t spent_ = 0;
  base::Clock::time_point start_ = base::Clock::now();
};

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
