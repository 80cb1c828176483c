// The gradient of products of each row with those before it, for both of its factors at once.
#pragma once

#include <ATen/core/Tensor.h>

namespace dtrain::model::bdh {

/// lower + lowerᵀ, where lower is what lies strictly below the diagonal of each matrix.
///
/// Shapes:  matrices (batch, T, T), floating point -> (batch, T, T), contiguous.
/// Threads: any.
[[nodiscard]] at::Tensor mirror_lower(const at::Tensor& matrices);

}  // namespace dtrain::model::bdh
