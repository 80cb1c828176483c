// Writes one rank's checkpoint files, with a rate limit.
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

/// Thrown to cancel a save because its process is ending.
struct SaveCancelled {};

/// Limits a writer's rate, and cancels it on request.
class RateLimiter {
 public:
  /// bytes_per_second: the limit; 0: no limit.
  /// unlimited:        lifts the limit while true; must outlive this object; may be null.
  explicit RateLimiter(double bytes_per_second = 0, std::stop_token stop = {},
                       const std::atomic<bool>* unlimited = nullptr)
      : bytes_per_second_(bytes_per_second), stop_(std::move(stop)), unlimited_(unlimited) {}

  /// Blocks until `bytes` more fit the rate since construction.
  ///
  /// Throws: SaveCancelled within 50 ms of a stop request.
  void acquire(std::int64_t bytes);

 private:
  double bytes_per_second_;
  std::stop_token stop_;
  const std::atomic<bool>* unlimited_;
  std::int64_t acquired_ = 0;
  base::Clock::time_point start_ = base::Clock::now();
};

/// A part of a global tensor; its bytes must stay valid until the write has finished.
struct PieceBytes {
  std::string tensor;  ///< the part before the first dot names the file: "model", ...
  format::Dtype dtype = format::Dtype::f32;
  std::vector<std::int64_t> shape;  ///< shape of the whole tensor
  format::Box box;
  std::span<const std::byte> bytes;  ///< values of the box, row-major
};

/// Identifies one rank's files of a checkpoint.
struct Shard {
  std::string folder;
  std::int64_t rank = 0;
  std::int64_t num_ranks = 1;
};

/// Writes the pieces to files such as model-00001-of-00002.safetensors, and syncs each file.
/// A file holds at most one piece of a tensor; further pieces go to separate files. The folder must
/// exist; it is not synced.
///
/// Throws: any exception of `files` and `limiter`; partial files may remain.
[[nodiscard]] format::Contents write_shard(base::FileSystem& files, const Shard& shard,
                                           std::span<const PieceBytes> pieces, RateLimiter limiter);

}  // namespace dtrain::checkpoint::store
