// Megatron's second cut: a linear map whose inputs are divided among ranks.
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

#include <ATen/core/Tensor.h>

#include "dtrain/parallel/tensor/sum_over.h"

namespace dtrain::parallel {

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
