// Sums whose additions have one order.
#pragma once

#include <ATen/core/Tensor.h>

namespace dtrain::device {

/// values (..., n), n > 0, of a floating point type -> (...) float64: each row's values, widened
/// and added from the first to the last, beginning with 0. Equal bits whatever the number of rows.
[[nodiscard]] at::Tensor ordered_sum(const at::Tensor& values);

}  // namespace dtrain::device
