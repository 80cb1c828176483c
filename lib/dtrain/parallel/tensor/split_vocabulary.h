// The two ends of a model whose vocabulary is divided among ranks: rank r has the tokens
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

#include "dtrain/comm/process_group.h"

namespace dtrain::parallel {

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

}  // namespace dtrain::parallel
