// Tensor-parallel primitives as in Megatron-LM: column-split and row-split products, and the
// vocabulary split of embedding and cross-entropy.
//
// Column split: outputs are divided among ranks.
//
// All ranks have the same x. Rank r has rows W_r of the weight and computes their outputs:
//
//   forward    y_r = x W_rᵀ               no communication: the operations that follow (ReLU,
//                                         products of neurons) are element-wise
//   backward   dx  = Σ_r dy_r W_r         one all_reduce, of x's size
//              dW_r = dy_rᵀ x             local: only rank r owns W_r
//
// dW_r does not depend on the sum, so it is computed while dx is reduced.
//
// Source: Shoeybi et al., Megatron-LM (2019), section 3: the operator f. Differs: other split
//         operations of a block may read x (attention reads it as values); their gradients are part
//         of the same all_reduce.
//
// Row split: inputs are divided among ranks.
//
// Rank r has inputs x_r, computed by a column split and element-wise functions, and the rows W_r of
// the weight that read them:
//
//   forward    y = Σ_r x_r W_r            one all_reduce, of y's size; y is equal on all ranks
//   backward   dx_r = dy W_rᵀ             no communication: dy is equal on all ranks
//              dW_r = x_rᵀ dy
//
// A column split, element-wise functions and a row split form a block with two all_reduces of its
// width, one forward and one backward, independent of the number of neurons in between.
//
// Source: Shoeybi et al., Megatron-LM (2019), section 3: the operator g.
//
// Vocabulary split: embedding and output matrix are divided by token. Rank r has consecutive tokens
// from `first` on, as rows of the embedding and as columns of the output matrix; if tp does not
// divide V, the first ranks have one more (TensorCoordinate::part_of).
//
//   embedding       y = Σ_r (embed_r[id - first] where rank r has id, else 0)
//                   one all_reduce of (..., D) forward; backward, each rank accumulates the
//                   gradient of its own rows
//   cross-entropy   nll = log Σ_v exp(z_v - m) - (z_target - m), m the largest z_v
//                   three numbers per token are reduced over ranks: m, the sum, and the target's
//                   logit, which one rank has; the logits are never sent
//                   backward: dz_v = softmax_v - [v is the target], for the rank's own columns
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

/// The group over which a product is split.
struct ProductSplit {
  comm::ProcessGroup& group;
  /// True if ranks share a head; float16 products are then computed in float32.
  bool shares_heads = false;
};

/// Column-split product. Other split operations of the block must read the returned x instead of x.
///
/// Shapes: x (1, rows, D), shared by all weights, or (h, rows, D), one for each weight; weight
///         (h, N, D), this rank's rows; the returned x has x's shape, and is float32 for float16.
///
/// Collective: the backward pass, every rank of the group.
[[nodiscard]] model::ColumnSplit column_split(const ProductSplit& split, const at::Tensor& x,
                                              const at::Tensor& weight);

/// Row-split product: Σ x W over h and the group's ranks. The result has equal bits on every rank.
///
/// Shapes:     x (h, rows, N), weight (h, N, D), both this rank's part; returns (rows, D) in x's
///             dtype.
/// Collective: the forward pass, every rank of the group.
[[nodiscard]] at::Tensor row_split(const ProductSplit& split, const at::Tensor& x,
                                   const at::Tensor& weight);

/// All-reduces `partial`; the result has dtype `result`. The gradient is equal on all ranks, and
/// the backward pass returns it unchanged.
///
/// Collective: the forward pass, every rank of the group.
[[nodiscard]] at::Tensor reduce(comm::ProcessGroup& group, const at::Tensor& partial,
                                at::ScalarType result);

/// Vocabulary-split embedding: weight (V/tp, D), ids (...) int64 -> (..., D), float32 for a 16-bit
/// weight. Reduced in the weight's dtype, which is exact because all addends but one are 0.
///
/// Collective: the forward pass, every rank of the group.
[[nodiscard]] at::Tensor split_embedding(comm::ProcessGroup& group, const at::Tensor& weight,
                                         const at::Tensor& ids, std::int64_t first);

/// Vocabulary-split cross-entropy: logits (rows, V/tp) float32 or float64, targets (rows) int64 ->
/// (rows), in nats. Saves one tensor of the logits' size for the backward pass.
///
/// Collective: the forward pass, every rank of the group.
[[nodiscard]] at::Tensor split_cross_entropy(comm::ProcessGroup& group, const at::Tensor& logits,
                                             const at::Tensor& targets, std::int64_t first);

/// Makes this rank's tensor axis, with the subgroups that its model declares. If tp is 1, the axis
/// does not communicate. The groups must outlive it.
///
/// Threads: one, which runs forward and backward passes.
[[nodiscard]] std::unique_ptr<model::TensorAxis> make_tensor_axis(const mesh::MeshGroups& groups);

}  // namespace dtrain::parallel
