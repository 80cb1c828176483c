// Measures the machine's peak speed of matrix products, for MFU.
#pragma once

#include <c10/core/ScalarType.h>

namespace dtrain::metrics {

/// FLOP/s of the best of a few square matrix products in `dtype` with the threads this process uses
/// now. Takes about 50 ms; ranks that share a machine should measure at the same time.
[[nodiscard]] double measure_peak_flops(c10::ScalarType dtype);

}  // namespace dtrain::metrics
