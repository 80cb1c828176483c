// Megatron's first cut: a linear map whose outputs are divided among ranks.
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
#pragma once

#include <ATen/core/Tensor.h>

#include "dtrain/model/tensor_axis.h"
#include "dtrain/parallel/tensor/sum_over.h"

namespace dtrain::parallel {

/// x (1, rows, D), one for all weights, or (h, rows, D), one for each; weight (h, N, D), this
/// rank's rows. The returned x is alike in shape, and float32 for float16: it is to be used where x
/// itself would be, by what is split along with the product.
///
/// Collective: the backward pass, every rank of the group.
[[nodiscard]] model::ColumnSplit column_split(const ProductSplit& split, const at::Tensor& x,
                                              const at::Tensor& weight);

}  // namespace dtrain::parallel
