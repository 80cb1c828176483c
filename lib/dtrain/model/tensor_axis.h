// The tensor-parallel operations that blocks call. Through this interface blocks are independent of
// ranks and process groups.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace dtrain::model {

/// Consecutive entries of a dim that is split over the tensor axis.
struct TensorPart {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

/// A rank's coordinate on the tensor axis, which determines its slice of the model. The default
/// holds the whole model.
struct TensorCoordinate {
  std::int64_t index = 0;
  std::int64_t size = 1;
  bool splits_vocab = false;  ///< embedding and output matrix are split too

  [[nodiscard]] bool is_whole() const { return size == 1; }
  /// The rank's part of `whole` entries. Parts differ by at most one entry, and the first ranks have
  /// the longer ones.
  [[nodiscard]] TensorPart part_of(std::int64_t whole) const {
    const std::int64_t longer = whole % size;
    return {.begin = index * (whole / size) + std::min(index, longer),
            .count = whole / size + (index < longer ? 1 : 0)};
  }
};

/// Converts bfloat16 and float16 to float32; returns other dtypes unchanged.
[[nodiscard]] inline at::Tensor widened(const at::Tensor& x) {
  return at::isReducedFloatingType(x.scalar_type()) ? x.to(at::kFloat) : x;
}

/// The result of a column-parallel linear map.
struct ColumnSplit {
  at::Tensor product;  ///< (h, rows, N): the outputs of the weight rows that this rank holds
  at::Tensor x;        ///< the input; further tensor-parallel operations of the block must read it
};

/// The tensor axis as seen by a block. This class implements an axis of size 1, where nothing is
/// split and every operation is local. docs/internals/tensor_parallel.md explains how to write
/// blocks with it.
///
/// h is the number of weights stacked in one tensor (the heads of a BDH model). On a larger axis
/// each rank holds some of the h weights, or a slice of one weight.
///
/// Collective: all ranks of the axis call each operation and its backward in the same order.
/// Throws:     what comm::Work::wait throws.
class TensorAxis {
 public:
  virtual ~TensorAxis() = default;

  /// Column-parallel product x Wᵀ: x is replicated, and each rank computes some of the outputs. One
  /// all-reduce sums the gradients of x through the product and through the returned x.
  ///
  /// Shapes: x (..., D), weight (h, N, D); the returned x is float32 for a float16 input if its
  ///         gradient is summed over ranks.
  [[nodiscard]] virtual ColumnSplit column_split(const at::Tensor& x, const at::Tensor& weight);

  /// Row-parallel product: the sum of x W over h and over ranks. Each rank holds some of the
  /// inputs, which a column split has computed; the result is replicated.
  ///
  /// Shapes: x (h, rows, N), weight (h, N, D); returns (rows, D) in x's dtype.
  [[nodiscard]] virtual at::Tensor row_split(const at::Tensor& x, const at::Tensor& weight);

  /// Column-parallel product x Wᵀ with one x per weight, replicated within a subgroup: the gradient
  /// of x is summed over the subgroup. subgroup: index in the family's tensor_subgroups (family.h).
  ///
  /// Shapes: x (h, rows, D), weight (h, N, D); returns (h, rows, N).
  [[nodiscard]] virtual at::Tensor column_split_within(std::size_t subgroup, const at::Tensor& x,
                                                       const at::Tensor& weight);

  /// All-reduces partial sums over a subgroup.
  [[nodiscard]] virtual at::Tensor reduce_within(std::size_t subgroup, const at::Tensor& partial);

  /// Passes on x, which is equal on all ranks, to operations that differ between ranks: its
  /// gradient is summed over ranks. For weights that are not split, as well as for activations.
  /// Returns float32 for a float16 x if its gradient is summed over ranks: see split_linear.h.
  [[nodiscard]] virtual at::Tensor replicated(const at::Tensor& x);

  /// All-reduces partial sums over the axis.
  [[nodiscard]] virtual at::Tensor reduce(const at::Tensor& partial);

  /// Looks up rows of a table that is split by rows; this rank holds the rows from `first` on.
  ///
  /// Shapes: weight (V, D), floating point; ids (...) int64; returns (..., D), float32 for a 16-bit
  ///         weight, because a row's gradient is the sum over all its occurrences in `ids`.
  [[nodiscard]] virtual at::Tensor embedding(const at::Tensor& weight, const at::Tensor& ids,
                                             std::int64_t first);

  /// Cross-entropy over a vocabulary that is split by columns; this rank holds the columns from
  /// `first` on. No rank ever holds all logits.
  ///
  /// Shapes: logits (rows, V) float32 or float64, targets (rows) int64; returns (rows), in nats.
  [[nodiscard]] virtual at::Tensor cross_entropy(const at::Tensor& logits,
                                                 const at::Tensor& targets, std::int64_t first);

  [[nodiscard]] virtual std::int64_t index() const { return 0; }
  [[nodiscard]] virtual std::int64_t size() const { return 1; }
};

}  // namespace dtrain::model
