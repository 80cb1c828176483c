#include "dtrain/config/device_rates.h"

#include "dtrain/config/resolve.h"

namespace dtrain::config {

DeviceRates device_rates(const MachineConfig& machine) {
  constexpr double kBytes = 3.0e12;
  constexpr double kHalf = 790e12;
  constexpr double kTf32 = 390e12;
  constexpr double kFull = 50e12;  // float32, and float64 on tensor cores
  const bool is_tf32 = machine.matmul_precision == MatmulPrecision::tf32;
  const double wide = is_tf32 ? kTf32 : kFull;
  switch (machine.param_dtype) {
    case Dtype::bfloat16:
      return {.products = kHalf, .wide_products = kHalf, .bytes = kBytes};
    case Dtype::float16:
      return {.products = kHalf, .wide_products = wide, .bytes = kBytes};
    case Dtype::float64:
      return {.products = kFull, .wide_products = kFull, .bytes = kBytes};
    default:
      return {.products = wide, .wide_products = wide, .bytes = kBytes};
  }
}

}  // namespace dtrain::config
