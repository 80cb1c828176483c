// The dtype of each role: master weights, computation, gradient reduction, constant tables.
#pragma once

#include <c10/core/ScalarType.h>

#include "dtrain/base/error.h"
#include "dtrain/config/config.h"

namespace dtrain::parallel {

/// The dtypes of one rank, and whether it scales the loss.
struct Precision {
  at::ScalarType master = at::kFloat;   ///< master weights, gradients and optimizer state
  at::ScalarType compute = at::kFloat;  ///< parameters and activations of blocks
  at::ScalarType reduce = at::kFloat;   ///< gradients sent between ranks
  at::ScalarType buffer = at::kFloat;   ///< the model's constant tables
  bool scales_loss = false;             ///< scale the loss, to avoid float16 underflow

  bool operator==(const Precision&) const = default;
};

/// Converts a dtype setting to LibTorch's dtype. dtype: must not be automatic.
[[nodiscard]] inline at::ScalarType dtype_of(config::Dtype dtype) {
  if (dtype == config::Dtype::float64) return at::kDouble;
  if (dtype == config::Dtype::bfloat16) return at::kBFloat16;
  if (dtype == config::Dtype::float16) return at::kHalf;
  DTRAIN_CHECK(dtype == config::Dtype::float32, "dtype {}", dtype);
  return at::kFloat;
}

}  // namespace dtrain::parallel
