// Dropout whose mask is a pure function of (seed, sample, level, position, neuron): the same under
// every layout, and nothing is kept for the backward pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace dtrain::model {

/// Where a tensor's elements stand in the whole model and data.
struct DropoutPlace {
  std::uint64_t seed = 0;
  std::int64_t level = 0;         ///< below 65,536
  std::int64_t first_sample = 0;  ///< of row b = 0; below 2^48
  std::int64_t first_row = 0;     ///< global head index of dim 0's first entry
};

/// x: (heads, B, T, N), contiguous float32 or float64; differentiable.
///
/// Element (h, b, t, i) is neuron (first_row + h) * N + i. It is dropped when its 16 random bits
/// are below round(probability * 65536), else scaled by the inverse of the exact share kept. 16
/// bits make one Philox call serve eight neurons; the probability is thus a multiple of 2^-16.
[[nodiscard]] at::Tensor dropout(const at::Tensor& x, double probability,
                                 const DropoutPlace& place);

}  // namespace dtrain::model
