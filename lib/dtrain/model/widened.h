// Widens values where 16 bits are too few.
#pragma once

#include <ATen/core/Tensor.h>

namespace dtrain::model {

/// bfloat16 and float16 -> float32; others as they are.
[[nodiscard]] inline at::Tensor widened(const at::Tensor& x) {
  return at::isReducedFloatingType(x.scalar_type()) ? x.to(at::kFloat) : x;
}

}  // namespace dtrain::model
