// Megatron's two cuts of a linear map over ranks. Both add partial results over the ranks of a group.
//
// Column split: the outputs are divided among ranks.
//
// All ranks have the same x. Rank r has the rows W_r of the weight, and computes the outputs that
// belong to them:
//
//   forward    y_r = x W_rᵀ               nothing is sent: what follows (ReLU, a product of
//                                         neurons) works on each output by itself
//   backward   dx  = Σ_r dy_r W_r         one all_reduce, of x's size
//              dW_r = dy_rᵀ x             stays here: rank r alone owns W_r
//
// dW_r needs nothing of the sum, so it is computed while dx travels.
//
// Source: Shoeybi et al., Megatron-LM (2019), section 3: the operator f. Differs: x may be read by
// other split parts of a block (attention reads it as values), whose gradients join the one sum.
//
// Row split: the inputs are divided among ranks.
//
// Rank r has some of the inputs, x_r (what a column split and functions of single outputs gave),
// and the rows W_r of the weight that read them:
//
//   forward    y = Σ_r x_r W_r            one all_reduce, of y's size; then all ranks are alike
//   backward   dx_r = dy W_rᵀ             nothing is sent: dy is the same on every rank
//              dW_r = x_rᵀ dy
//
// A column split, functions of single outputs and a row split make a block that sends its width
// twice, once each way, however many neurons lie between.
//
// Source: Shoeybi et al., Megatron-LM (2019), section 3: the operator g.
#pragma once

#include "dtrain/comm/process_group.h"
#include "dtrain/model/tensor_axis.h"

namespace dtrain::parallel {

/// The dtype that partial sums of `dtype` travel in. float16 ends at 65,504, which a partial sum
/// can pass though the whole sum does not, so it travels as float32; bfloat16 has float32's range.
[[nodiscard]] at::ScalarType travel_dtype(at::ScalarType dtype);

/// A sum under way.
class PendingSum {
 public:
  /// Starts the sum over the group of every rank's `partial`, in travel_dtype(result).
  ///
  /// Collective: every rank of `group`. Async: `partial` is copied; wait() gives the sum.
  PendingSum(comm::ProcessGroup& group, const at::Tensor& partial, at::ScalarType result);

  /// The sum, in the dtype that was asked for; the same bits on every rank.
  ///
  /// Throws: what comm::Work::wait throws.
  [[nodiscard]] at::Tensor wait();

 private:
  at::Tensor values_;
  at::ScalarType result_;
  comm::Work work_;
};

/// The ranks over which a product is split, and how finely.
struct ProductSplit {
  comm::ProcessGroup& group;
  bool shares_heads = false;  ///< parts are smaller than a head: see partial_product
};

/// The product a b of two batches of matrices that is one of several partial sums: where ranks
/// share a head, float16 factors give a float32 product, as parts of a sum over the head's neurons
/// may pass float16's range though the sum does not.
[[nodiscard]] at::Tensor partial_product(const at::Tensor& a, const at::Tensor& b,
                                         bool shares_heads);

/// x (1, rows, D), one for all weights, or (h, rows, D), one for each; weight (h, N, D), this
/// rank's rows. The returned x is alike in shape, and float32 for float16: it is to be used where x
/// itself would be, by what is split along with the product.
///
/// Collective: the backward pass, every rank of the group.
[[nodiscard]] model::ColumnSplit column_split(const ProductSplit& split, const at::Tensor& x,
                                              const at::Tensor& weight);

/// Σ x W over h and over the ranks of the group. x (h, rows, N), weight (h, N, D), this rank's;
/// returns (rows, D) in x's dtype, the same bits on every rank.
///
/// Collective: the forward pass, every rank of the group.
[[nodiscard]] at::Tensor row_split(const ProductSplit& split, const at::Tensor& x,
                                   const at::Tensor& weight);

/// The sum of every rank's `partial`, in `result` dtype; its gradient, the same on every rank, is
/// that of each partial.
///
/// Collective: the forward pass, every rank of the group.
[[nodiscard]] at::Tensor reduce(comm::ProcessGroup& group, const at::Tensor& partial,
                                at::ScalarType result);

}  // namespace dtrain::parallel
