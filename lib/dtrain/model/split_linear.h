// Linear maps whose outputs or inputs are divided among the ranks of the tensor axis.
//
// float16 needs care, because a partial sum over a rank's part may exceed 65504 although the sum over
// ranks does not. Partial sums of float16 factors are therefore float32 until they are reduced. They
// cannot overflow there: n products of float16 numbers sum to less than n * 2^32. Other dtypes are
// reduced as they are computed.
#pragma once

#include <ATen/core/Tensor.h>

#include "dtrain/model/tensor_axis.h"

namespace dtrain::model {

/// x Wᵀ + bias, of which this rank computes the outputs of its rows of the weight. The gradient of x,
/// a partial sum, has x's dtype.
///
/// Shapes: x (..., K), a result of TensorAxis::replicated; weight (N, K); bias (N), or undefined;
///         returns (..., N) in `dtype`, the dtype of x before it was replicated.
[[nodiscard]] at::Tensor column_linear(const at::Tensor& x, const at::Tensor& weight,
                                       const at::Tensor& bias, at::ScalarType dtype);

/// Σ x Wᵀ over the ranks of the axis, each of which has some of the inputs.
///
/// Shapes:     x (..., K), weight (N, K), both this rank's part; returns (..., N) in x's dtype.
/// Collective: the forward pass, every rank of the axis.
[[nodiscard]] at::Tensor row_linear(TensorAxis& axis, const at::Tensor& x,
                                    const at::Tensor& weight);

}  // namespace dtrain::model
