// Measures the machine's peak speed of matrix products, for MFU.
#pragma once

#include <c10/core/TensorOptions.h>

namespace dtrain::metrics {

/// FLOP/s of the best of a few square matrix products in the options' dtype on their device, on a
/// CPU with the threads this process uses now. Takes about 50 ms; ranks that share a machine should
/// measure at the same time.
[[nodiscard]] double measure_peak_flops(const at::TensorOptions& options);

}  // namespace dtrain::metrics
