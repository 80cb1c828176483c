// Dropout whose mask is a pure function of (seed, sample, level, position, neuron): the same under
// every layout, and nothing is kept for the backward pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace dtrain::model {

/// Where a tensor's elements stand in the whole model and data.
struct DropoutOffsets {
  std::uint64_t seed = 0;
  std::int64_t level = 0;  ///< below 65,536
  /// Of row b = 0: () int64 below 2^48, on the tensor's device, where each run of a captured
  /// kernel reads it anew.
  at::Tensor first_sample = {};
  std::int64_t first_neuron = 0;  ///< of (h, i) = (0, 0), counted through all heads
};

/// x: (heads, B, T, N), contiguous, floating point; differentiable.
///
/// Element (h, b, t, i) is neuron n = first_neuron + h * N + i. Neurons come in blocks of 64, each
/// of which takes eight Philox counters: n reads counter word 0 = (n / 64) * 8 + n % 8 and of its
/// four words the 16-bit half (n / 8) % 8, low halves first; words 1 to 3 are position, the
/// sample's low 32 bits, and level << 16 | the sample's bits 32 to 47. The element is dropped when
/// its half is below round(probability * 65536), else scaled by the inverse of the exact share
/// kept: the probability is a multiple of 2^-16. bfloat16 and float16 are scaled in float32 and
/// rounded once, so that the mean is preserved.
[[nodiscard]] at::Tensor dropout(const at::Tensor& x, double probability,
                                 const DropoutOffsets& place);

}  // namespace dtrain::model
