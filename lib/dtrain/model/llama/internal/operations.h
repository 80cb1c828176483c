// The operations of a Llama's blocks that LibTorch lacks or computes with more memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "dtrain/config/llama/settings.h"

namespace dtrain::model::llama {

/// x / sqrt(mean(x²) + epsilon) * weight over the last dim; differentiable in x and weight. For
/// 16-bit dtypes the statistics are float32, and the quotient is rounded before it is multiplied.
///
/// Shapes: x (..., N), weight (N) of the same dtype; returns (..., N).
[[nodiscard]] at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon);

/// silu(gate) * up; differentiable. Saves gate and up alone.
///
/// Shapes: both (..., N); returns (..., N).
[[nodiscard]] at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

/// RoPE's frequencies in radians per position, (d/2) float32, computed in float32 as transformers
/// does: theta^(-2i/d), scaled as `rope` says.
[[nodiscard]] at::Tensor rotary_frequencies(const config::llama::RopeSettings& rope,
                                            std::int64_t head_dim);

/// Cosines and sines of the angles of positions [begin, end); the angles are float32 for any dtype.
struct RotaryTable {
  at::Tensor cosine;  ///< (end - begin, d/2)
  at::Tensor sine;    ///< (end - begin, d/2)
};
[[nodiscard]] RotaryTable rotary_table(const at::Tensor& frequencies, std::int64_t begin,
                                       std::int64_t end, const at::TensorOptions& options);

/// Rotates the pairs (i, i + d/2) of each head by the angles of its position; differentiable in x.
///
/// Shapes: x (..., T, d), table (T, d/2) in x's dtype; returns (..., T, d).
/// Source: Su et al., RoFormer (2021), half-split form.
[[nodiscard]] at::Tensor rotate_halves(const at::Tensor& x, const RotaryTable& table);

/// Caches the table for positions [0, T) for all layers and steps.
///
/// Threads: one model, one thread.
class RotaryTables {
 public:
  RotaryTables(const config::llama::RopeSettings& rope, std::int64_t head_dim)
      : rope_(rope), head_dim_(head_dim) {}

  [[nodiscard]] const RotaryTable& table(std::int64_t length, const at::TensorOptions& options);

 private:
  config::llama::RopeSettings rope_;
  std::int64_t head_dim_;
  RotaryTable table_;
};

}  // namespace dtrain::model::llama
