// The dtypes that a rank holds, computes and sends its values in.
#pragma once

#include <c10/core/ScalarType.h>

#include "dtrain/base/error.h"
#include "dtrain/config/config.h"

namespace dtrain::parallel {

struct Precision {
  at::ScalarType master = at::kFloat;   ///< of masters, gradients and optimizer state
  at::ScalarType compute = at::kFloat;  ///< of what blocks read and compute
  at::ScalarType reduce = at::kFloat;   ///< in which gradients travel between ranks
  at::ScalarType buffer = at::kFloat;   ///< of the model's constant tables
  bool scales_loss = false;             ///< against underflow of float16

  bool operator==(const Precision&) const = default;
};

/// dtype: any but automatic.
[[nodiscard]] inline at::ScalarType dtype_of(config::Dtype dtype) {
  if (dtype == config::Dtype::float64) return at::kDouble;
  if (dtype == config::Dtype::bfloat16) return at::kBFloat16;
  if (dtype == config::Dtype::float16) return at::kHalf;
  DTRAIN_CHECK(dtype == config::Dtype::float32, "dtype {}", dtype);
  return at::kFloat;
}

}  // namespace dtrain::parallel
