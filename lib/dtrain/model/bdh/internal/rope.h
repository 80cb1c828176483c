// Rotary position embedding on interleaved pairs, as in the BDH reference.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace dtrain::model::bdh {

/// Returns the RoPE frequencies, (N) float32, in rotations per position:
/// theta^(-2*floor(i/2)/N) / 2pi with theta = 2^16. Bit-identical on every CPU.
[[nodiscard]] at::Tensor rope_frequencies(std::int64_t neurons);

/// Neurons [first, first + count) of a head of `whole` neurons; all even, so that no pair is split.
struct HeadSlice {
  std::int64_t whole = 0;
  std::int64_t first = 0;
  std::int64_t count = whole;
};

/// Returns a table (end - begin, neurons.count/2, 2) of cosine and sine of 2*pi * (t*freq mod 1), for
/// positions t in [begin, end) and the pairs of `neurons`, with the dtype and device of `options`.
///
/// The product t*freq is float32 for any dtype, as in the reference; cosine and sine are rounded
/// once to float32, then cast. Bit-identical on every CPU and for any number of threads.
/// Source: Su et al., RoFormer (2021), interleaved form.
[[nodiscard]] at::Tensor rope_rotations(std::int64_t begin, std::int64_t end,
                                        const HeadSlice& neurons, const at::TensorOptions& options);

/// Rotates each pair (2k, 2k+1) of v at position t by table[t][k]; differentiable in v. bfloat16 and
/// float16 are computed in float32 and rounded once.
///
/// Shapes: v (..., T, N), contiguous; table (T, N/2, 2); returns v's shape and dtype.
[[nodiscard]] at::Tensor rope_rotate(const at::Tensor& v, const at::Tensor& table);

/// Caches the table for positions [0, T) for all levels and steps.
///
/// Threads: one model, one thread.
class RopeTables {
 public:
  explicit RopeTables(const HeadSlice& neurons) : neurons_(neurons) {}

  /// Returns the rope_rotations table (length, neurons.count/2, 2), rounded to `precision` and stored
  /// in the dtype of `options`, which may be wider. All calls pass the same two dtypes.
  [[nodiscard]] const at::Tensor& table(std::int64_t length, at::ScalarType precision,
                                        const at::TensorOptions& options);

 private:
  HeadSlice neurons_;
  at::Tensor table_;
};

}  // namespace dtrain::model::bdh
