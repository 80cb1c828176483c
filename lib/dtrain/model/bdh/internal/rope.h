// Rotary position embedding on interleaved pairs, as the reference BDH computes it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace dtrain::model::bdh {

/// (N) float32: theta^(-2*floor(i/2)/N) / 2pi with theta = 2^16, rotations per position. Equal bits
/// on every CPU.
[[nodiscard]] at::Tensor rope_frequencies(std::int64_t neurons);

/// Neurons [first, first + count) of a head of `whole`; all even, so that pairs stay together.
struct HeadSlice {
  std::int64_t whole = 0;
  std::int64_t first = 0;
  std::int64_t count = whole;
};

/// Cosine and sine of 2*pi * (t*freq mod 1) for positions t in [begin, end) and the pairs of
/// `neurons`: a table (end - begin, neurons.count/2, 2) of the options' dtype, on their device.
///
/// The product t*freq is float32 whatever the dtype, as in the reference; cosine and sine are
/// rounded once to float32, and then the table is cast. Equal bits on every CPU and with any number
/// of threads.
/// Source: Su et al., RoFormer (2021), interleaved form.
[[nodiscard]] at::Tensor rope_rotations(std::int64_t begin, std::int64_t end,
                                        const HeadSlice& neurons, const at::TensorOptions& options);

/// v (..., T, N), contiguous -> v with each pair (2k, 2k+1) of position t turned by
/// table[t][k], in v's dtype; differentiable in v. bfloat16 and float16 are turned in float32 and
/// rounded once.
[[nodiscard]] at::Tensor rope_rotate(const at::Tensor& v, const at::Tensor& table);

/// The table for positions [0, T), made once for all levels and steps.
///
/// Threads: one model, one thread.
class RopeTables {
 public:
  explicit RopeTables(const HeadSlice& neurons) : neurons_(neurons) {}

  /// (length, neurons.count/2, 2), as rope_rotations, of values that are rounded to `precision`;
  /// options may be of a wider dtype, which then holds them. All calls agree on both.
  [[nodiscard]] const at::Tensor& table(std::int64_t length, at::ScalarType precision,
                                        const at::TensorOptions& options);

 private:
  HeadSlice neurons_;
  at::Tensor table_;
};

}  // namespace dtrain::model::bdh
