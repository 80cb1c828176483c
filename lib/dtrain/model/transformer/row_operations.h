// The element-wise operations of transformers that LibTorch lacks or computes with more memory:
// norms, rotary positions, activations and losses.
#pragma once

#include <ATen/core/Tensor.h>

#include "dtrain/config/values/values.h"

namespace dtrain::model {

/// Cosines and sines of the angles of consecutive positions; the angles are float32 for any dtype.
struct RotaryTable {
  at::Tensor cosine;  ///< (T, d/2)
  at::Tensor sine;    ///< (T, d/2)
};

/// Differentiable operations. Shapes and dtypes of results are those of the first input, unless
/// stated otherwise. Weights and tables are contiguous; other inputs may have any strides.
struct RowOperations {
  bool is_fused;

  /// x / sqrt(mean(x²) + epsilon) * weight over the last dim. For 16-bit dtypes the statistics are
  /// float32, and the quotient is rounded before it is multiplied.
  ///
  /// Shapes: x (..., N), weight (N) of the same dtype.
  at::Tensor (*rms_norm)(const at::Tensor& x, const at::Tensor& weight, double epsilon);

  /// Rotates the pairs (i, i + d/2) of each head by the angles of its position.
  ///
  /// Shapes: x (..., H, T, d), table (T, d/2) in x's dtype.
  /// Source: Su et al., RoFormer (2021), half-split form.
  at::Tensor (*rotate_halves)(const at::Tensor& x, const RotaryTable& table);

  /// silu(gate) * up. Saves gate and up alone.
  ///
  /// Shapes: both (..., N).
  at::Tensor (*swiglu)(const at::Tensor& gate, const at::Tensor& up);

  /// GELU in its tanh form. Saves x alone.
  at::Tensor (*gelu)(const at::Tensor& x);

  /// -log softmax(logits)[target] of each row.
  ///
  /// Shapes: logits (rows, V), targets (rows) int64 below V; returns (rows) in nats, float32 for a
  ///         16-bit dtype.
  at::Tensor (*cross_entropy)(const at::Tensor& logits, const at::Tensor& targets);
};

/// Returns one of two implementations, which agree to rounding: `plain` calls LibTorch's operators, on
/// every device; `fused` makes one pass over memory per operation, forward and backward, on the CPU
/// in float32, float64 and bfloat16. The bits of `fused` do not depend on the number of threads, nor,
/// except for the C library's logarithm in float64 losses, on the CPU.
[[nodiscard]] const RowOperations& row_operations(config::Kernels kernels);

}  // namespace dtrain::model
