// The global gradient norm, bit-identical for any sharding of the gradients.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

#include "dtrain/param/arena.h"

namespace dtrain::optim {

/// Elements per block of the norm's summation order.
inline constexpr std::int64_t kNormBlock = 4096;

/// Computes the L2 norm over all parameters, in float64 and in a fixed order of additions. A
/// parameter is divided into blocks of kNormBlock elements, and a block into cells of 64 elements.
/// Sums of squares are added in order: cells of a block, blocks of a parameter, parameters by
/// exported name. Shard boundaries lie between cells. If a block crosses a boundary, ranks exchange
/// its cell sums instead of the block sum, which gives the same bits.
///
/// Threads: one.
class GlobalNorm {
 public:
  /// Sums over the elements that `shard` owns; tensors are on `device`.
  GlobalNorm(const param::ArenaLayout& layout, const param::ParameterSpecs& specs,
             param::ShardId shard, c10::Device device = at::kCPU);

  /// Returns this shard's sums, (n) float64, with zeros for other shards and for elements that
  /// `values` lacks. The caller adds the sums of all shards, in any order.
  [[nodiscard]] at::Tensor sums_of(const param::Arena& values) const;
  /// Returns the sum of squares of each parameter by id, (parameters) float64, from sums that were
  /// added over all shards.
  [[nodiscard]] at::Tensor squares(const at::Tensor& sums) const;
  /// Returns the global norm, () float64, from the sums of squares.
  [[nodiscard]] at::Tensor norm(const at::Tensor& squares) const;

 private:
  // The blocks of one contiguous range that this shard owns.
  struct OwnBlocks {
    param::ElementRange range;  // range in the layout
    at::Tensor table;           // (blocks, 4) int64: the table of norm_sums_
  };

  std::vector<OwnBlocks> own_;
  std::int64_t num_slots_ = 0;
  at::Tensor blocks_;   // (blocks, 2) int64: slot, number of slots; of all parameters, by id
  at::Tensor ends_;     // (parameters) int64: one past each parameter's last block
  at::Tensor by_name_;  // (parameters) int64: ids, sorted by name
};

/// Returns the L2 norm, () float64, of contiguous values (n). Sums over blocks of kNormBlock
/// elements are added in order, so the bits do not depend on the number of threads. Copies no
/// values.
[[nodiscard]] at::Tensor norm_of(const at::Tensor& values);

/// Returns the factor, () float64, that scales gradients to a norm of at most max_norm; 1 if
/// `norm` () is at most max_norm or not finite, or if max_norm is 0.
[[nodiscard]] at::Tensor clip_factor(const at::Tensor& norm, double max_norm);

/// Multiplies `values` in place by factor, () float64, which is read on the device.
void scale_by(const at::Tensor& values, const at::Tensor& factor);

}  // namespace dtrain::optim
