// The operations that a tensor-parallel block may ask for, and its place among the ranks that share
// them. Blocks know this and nothing of ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>

namespace dtrain::model {

/// A rank's place on the tensor axis: what a model is made for. The default holds the whole model.
struct TensorCoordinate {
  std::int64_t index = 0;
  std::int64_t size = 1;
  bool splits_vocab = false;  ///< embedding and output matrix are cut too

  [[nodiscard]] bool is_whole() const { return size == 1; }
};

/// bfloat16 and float16 -> float32, where 16 bits are too few; others as they are.
[[nodiscard]] inline at::Tensor widened(const at::Tensor& x) {
  return at::isReducedFloatingType(x.scalar_type()) ? x.to(at::kFloat) : x;
}

/// The result of a linear map that is split by its outputs.
struct ColumnSplit {
  at::Tensor product;  ///< (h, rows, N): the outputs of the weight rows that this rank holds
  at::Tensor x;        ///< the input, to be read by whatever else of the block is split
};

/// The tensor axis as seen by a block; this class is the axis of size 1, where nothing is split and
/// every request is plain arithmetic. docs/internals/tensor_parallel.md says how blocks are written with it.
///
/// h is the number of weights that lie side by side in one tensor (the heads of a BDH), of which a
/// rank of a larger axis holds some, or a part of one.
///
/// Collective: over the axis, each request and its backward pass in the same order on every rank.
/// Throws:     what comm::Work::wait throws.
class TensorAxis {
 public:
  virtual ~TensorAxis() = default;

  /// x Wᵀ for an x that all ranks have alike and outputs that each has some of. The gradients of x
  /// by the product and by the returned x are summed over the axis, in one call.
  ///
  /// Shapes: x (..., D), weight (h, N, D); the returned x is float32 for a float16 one where ranks
  ///         add up its gradient.
  [[nodiscard]] virtual ColumnSplit column_split(const at::Tensor& x, const at::Tensor& weight);

  /// The sum over h of x W, and over the ranks, which hold some of the inputs each: what follows a
  /// column split and makes all ranks alike again.
  ///
  /// Shapes: x (h, rows, N), weight (h, N, D); returns (rows, D) in x's dtype.
  [[nodiscard]] virtual at::Tensor row_split(const at::Tensor& x, const at::Tensor& weight);

  /// x Wᵀ where each weight has an x of its own, which the ranks of a subgroup have alike: the
  /// gradient of x is summed over these ranks. subgroup: of those that the family declares
  /// (tensor_subgroups in family.h).
  ///
  /// Shapes: x (h, rows, D), weight (h, N, D); returns (h, rows, N).
  [[nodiscard]] virtual at::Tensor column_split_within(std::size_t subgroup, const at::Tensor& x,
                                                       const at::Tensor& weight);

  /// The sum of the partial sums that the ranks of a subgroup hold.
  [[nodiscard]] virtual at::Tensor reduce_within(std::size_t subgroup, const at::Tensor& partial);

  /// The sum of the partial sums that the ranks of the axis hold.
  [[nodiscard]] virtual at::Tensor reduce(const at::Tensor& partial);

  /// Rows of a table of which each rank holds some, from row `first` on.
  ///
  /// Shapes: weight (V, D), of a floating dtype; ids (...) int64; returns (..., D), float32 for a
  ///         weight of 16 bits, since a row's gradient adds up over the places where it stands.
  [[nodiscard]] virtual at::Tensor embedding(const at::Tensor& weight, const at::Tensor& ids,
                                             std::int64_t first);

  /// Cross-entropy over a vocabulary of which each rank has some columns, from `first` on. The
  /// whole logits are never in one place.
  ///
  /// Shapes: logits (rows, V) float32 or float64, targets (rows) int64; returns (rows), in nats.
  [[nodiscard]] virtual at::Tensor cross_entropy(const at::Tensor& logits,
                                                 const at::Tensor& targets, std::int64_t first);

  [[nodiscard]] virtual std::int64_t index() const { return 0; }
  [[nodiscard]] virtual std::int64_t size() const { return 1; }
};

}  // namespace dtrain::model
