// How fast this machine multiplies.
#pragma once

#include <c10/core/ScalarType.h>

namespace dtrain::kernels {

/// FLOP/s of Product on all threads of the rank at once, on matrices in their caches: the best of
/// as many measurements of about a millisecond as fit into `seconds`. 0 for an unsupported type.
[[nodiscard]] double product_rate(c10::ScalarType type, double seconds);

}  // namespace dtrain::kernels
