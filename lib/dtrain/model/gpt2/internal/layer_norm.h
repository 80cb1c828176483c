// LayerNorm with float32 statistics in every 16-bit dtype.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace dtrain::model::gpt2 {

/// (x - mean(x)) / sqrt(variance(x) + epsilon) * weight + bias over the last dim; differentiable in
/// x, weight and bias. 16-bit dtypes are computed in float32 and rounded once. Saves x and its
/// statistics.
///
/// Shapes: x (..., N), weight and bias (N) of the same dtype; returns (..., N).
[[nodiscard]] at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight,
                                    const std::optional<at::Tensor>& bias, double epsilon);

}  // namespace dtrain::model::gpt2
