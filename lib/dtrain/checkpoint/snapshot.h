// Copies of a rank's state that stand still while training goes on.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "dtrain/checkpoint/state.h"
#include "dtrain/checkpoint/store/shard_writer.h"

namespace dtrain::checkpoint {

/// Whether the host can read all of them.
[[nodiscard]] bool are_on_host(const State& pieces);

/// The pieces, which the host can read, as bytes in the tensors' own memory, which must not change
/// while they are used.
[[nodiscard]] std::vector<store::PieceBytes> bytes_of(const State& pieces);

/// Memory for one copy of a rank's pieces, taken and touched once, so that a copy costs no more
/// than moving the bytes. It is pinned where the pieces lie on a device.
///
/// Threads: one caller; what take() gave may be read by another until the next take().
class Staging {
 public:
  /// For pieces of the sizes of `pieces`.
  explicit Staging(const State& pieces);
  /// Returns the bytes of a rank's copy of a state of which it saves this share.
  [[nodiscard]] static std::int64_t bytes(std::int64_t state_bytes, double share) {
    return static_cast<std::int64_t>(static_cast<double>(state_bytes) * share);
  }

  /// Copies the pieces; what the earlier call gave is overwritten.
  [[nodiscard]] std::vector<store::PieceBytes> take(const State& pieces);

 private:
  std::int64_t num_bytes_;
  c10::Device device_;
  at::Tensor memory_;  // (num_bytes_) uint8: counted as all tensors are
};

}  // namespace dtrain::checkpoint
