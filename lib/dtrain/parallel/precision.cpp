#include "dtrain/parallel/precision.h"

#include "dtrain/base/error.h"
#include "dtrain/config/resolve.h"

namespace dtrain::parallel {

Precision precision_of(const config::Config& config) {
  const config::MachineConfig& machine = config.machine;
  const at::ScalarType master = dtype_of(config::wide_dtype(machine));  // never below float32
  return {.master = master,
          .compute = dtype_of(machine.param_dtype),
          // On one rank nothing travels, and so nothing is converted.
          .reduce = config.layout.dp > 1 ? dtype_of(machine.reduce_dtype) : master,
          .buffer = dtype_of(machine.buffer_dtype),
          .scales_loss = config::needs_loss_scaling(machine)};
}

at::ScalarType dtype_of(config::Dtype dtype) {
  if (dtype == config::Dtype::float64) return at::kDouble;
  if (dtype == config::Dtype::bfloat16) return at::kBFloat16;
  if (dtype == config::Dtype::float16) return at::kHalf;
  DTRAIN_CHECK(dtype == config::Dtype::float32, "dtype {}", dtype);
  return at::kFloat;
}

}  // namespace dtrain::parallel
