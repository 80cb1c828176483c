// The global gradient norm, with the same bits however gradients are spread over ranks.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

#include "dtrain/param/arena.h"

namespace dtrain::optim {

/// Elements of a parameter that are summed together.
inline constexpr std::int64_t kNormBlock = 4096;

/// The L2 norm over all parameters: float64 sums of squares over blocks of kNormBlock elements of
/// each parameter, added in the order of exported names, then of blocks. A block is the sum of its
/// cells of 64 elements, in order, and shards are cut between cells: where a cut goes through a
/// block the cells are exchanged, so that the sum has the bits of an uncut one.
///
/// Threads: one.
class GlobalNorm {
 public:
  /// For the elements that `shard` owns, in tensors on `device`.
  GlobalNorm(const param::ArenaLayout& layout, const param::ParameterSpecs& specs,
             param::ShardId shard, c10::Device device = at::kCPU);

  /// This shard's sums, zero in the places of other shards and of what `values` does not hold, (n)
  /// float64: to be summed over the shards, in any order.
  [[nodiscard]] at::Tensor sums_of(const param::Arena& values) const;
  /// From the sums of all shards: the sum of squares of each parameter, by id, (parameters)
  /// float64.
  [[nodiscard]] at::Tensor squares(const at::Tensor& sums) const;
  /// The norm of parameters with these sums of squares, () float64.
  [[nodiscard]] at::Tensor norm(const at::Tensor& squares) const;

 private:
  // Blocks of one range of elements that this shard owns.
  struct OwnBlocks {
    param::ElementRange range;  // of the layout
    at::Tensor table;           // (blocks, 4) int64: as norm_sums_ reads it
  };

  std::vector<OwnBlocks> own_;
  std::int64_t num_slots_ = 0;
  at::Tensor blocks_;   // (blocks, 2) int64: slot, number of slots; of all parameters, by id
  at::Tensor ends_;     // (parameters) int64: the block after each one's last
  at::Tensor by_name_;  // (parameters) int64: ids
};

/// The norm of values (n), contiguous, () float64: sums over blocks of kNormBlock elements are added
/// in order, so the bits do not depend on threads. Copies no values.
[[nodiscard]] at::Tensor norm_of(const at::Tensor& values);

/// Returns the factor that scales gradients to a norm of at most max_norm, () float64; 1 where the
/// norm () is that small or not finite, or where max_norm is 0.
[[nodiscard]] at::Tensor clip_factor(const at::Tensor& norm, double max_norm);

/// Multiplies `values` by factor () float64, read where the product runs.
void scale_by(const at::Tensor& values, const at::Tensor& factor);

}  // namespace dtrain::optim
