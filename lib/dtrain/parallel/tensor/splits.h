// Megatron's cuts of a model over ranks: two of a linear map, which add partial results over the
// ranks of a group, and that of the vocabulary. The tensor axis is made of these.
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
//
// Vocabulary: its two ends are divided among ranks. Rank r has the tokens
// [first, first + V/tp), as rows of the embedding and as columns of the output matrix.
//
//   embedding       y = Σ_r (embed_r[id - first] where rank r has id, else 0)
//                   one all_reduce of (..., D) forward; backward, each rank adds the gradient to
//                   the rows that it has
//   cross-entropy   nll = log Σ_v exp(z_v - m) - (z_target - m), m the largest z_v
//                   three numbers a token are reduced over ranks: m, the sum, and the target's
//                   logit, which one rank has; the logits themselves stay where they are
//                   backward: dz_v = softmax_v - [v is the target], of the rank's own columns
//
// Source: Shoeybi et al., Megatron-LM (2019), section 3, embeddings.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "dtrain/comm/process_group.h"
#include "dtrain/mesh/mesh_groups.h"
#include "dtrain/model/tensor_axis.h"

namespace dtrain::parallel {

/// The ranks over which a product is split, and how finely.
struct ProductSplit {
  comm::ProcessGroup& group;
  /// Parts are smaller than a head: float16 products are made in float32.
  bool shares_heads = false;
};

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

/// weight (V/tp, D), ids (...) int64 -> (..., D), float32 for a weight of 16 bits. Travels in the
/// weight's dtype: all but one of the numbers that are added are 0.
///
/// Collective: the forward pass, every rank of the group.
[[nodiscard]] at::Tensor split_embedding(comm::ProcessGroup& group, const at::Tensor& weight,
                                         const at::Tensor& ids, std::int64_t first);

/// logits (rows, V/tp) float32 or float64, targets (rows) int64 -> (rows), in nats. Keeps one
/// tensor of the logits' size for its backward pass.
///
/// Collective: the forward pass, every rank of the group.
[[nodiscard]] at::Tensor split_cross_entropy(comm::ProcessGroup& group, const at::Tensor& logits,
                                             const at::Tensor& targets, std::int64_t first);

/// The tensor axis of this rank, with the subgroups that its model declares; plain arithmetic where
/// it has one rank. The groups must outlive it.
///
/// Threads: one, which runs forward and backward passes.
[[nodiscard]] std::unique_ptr<model::TensorAxis> make_tensor_axis(const mesh::MeshGroups& groups);

}  // namespace dtrain::parallel
