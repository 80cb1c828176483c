// Counter-based dropout: the mask is a pure function of (seed, sample, layer, position, neuron). It
// is equal under every layout, and the backward pass recomputes it instead of storing it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace dtrain::model {

/// The offsets of a tensor's elements within the whole model and data stream.
struct DropoutOffsets {
  std::uint64_t seed = 0;
  std::int64_t level = 0;  ///< the layer's index, below 65,536
  /// Sample number of row b = 0: () int64 below 2^48. It lies on the tensor's device, so that every
  /// replay of a captured graph reads the current value.
  at::Tensor first_sample = {};
  std::int64_t first_neuron = 0;  ///< number of neuron (h, i) = (0, 0), counted over all heads
};

/// Applies dropout; differentiable.
///
/// Element (h, b, t, i) is neuron n = first_neuron + h * N + i. Each block of 64 neurons uses eight
/// Philox counters: neuron n uses the counter with word 0 = (n / 64) * 8 + n % 8, words 1 to 3 =
/// position, the sample's low 32 bits, and level << 16 | the sample's bits 32 to 47; of the four
/// output words it takes the 16-bit half (n / 8) % 8, low halves first. The element is dropped if
/// that half is below round(probability * 65536), otherwise scaled by the inverse of the exact keep
/// probability, a multiple of 2^-16. bfloat16 and float16 are scaled in float32 and rounded once,
/// which preserves the mean.
///
/// Shapes: x (heads, B, T, N), contiguous, floating point; returns the same.
[[nodiscard]] at::Tensor dropout(const at::Tensor& x, double probability,
                                 const DropoutOffsets& place);

}  // namespace dtrain::model
