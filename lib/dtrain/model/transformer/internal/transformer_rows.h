// Element-wise kernels of a transformer's fused operations, one row at a time, compiled for each
// instruction set.
#pragma once

#include "dtrain/kernels/row_values.h"

namespace dtrain::model {

/// Kernels on rows of `count` elements. S is the storage type, W the compute type: float for
/// bfloat16, otherwise S. An element's bits depend neither on the instruction set nor on its
/// position (kernels/row_loops.h).
template <typename S, typename W>
struct TransformerRows {
  /// out = x * scale * weight, with x * scale rounded to S. Returns
  /// scale = 1 / sqrt(mean(x²) + epsilon).
  W (*rms_norm)(const S* x, const S* weight, double epsilon, S* out, long count);
  /// Computes d_x, and adds the row's part of the weight's gradient to d_weight unless it is null.
  void (*rms_norm_backward)(const S* d_out, const S* x, const S* weight, W scale, S* d_x,
                            W* d_weight, long count);
  /// Rotates each pair (i, half + i) of a head by the angle of (cosine, sine) = (cosines[i],
  /// direction * sines[i]).
  void (*rotate_halves)(const S* x, const S* cosines, const S* sines, W direction, S* out,
                        long half);
  /// out = silu(gate) * up, with silu(gate) rounded to S.
  void (*swiglu)(const S* gate, const S* up, S* out, long count);
  void (*swiglu_backward)(const S* d_out, const S* gate, const S* up, S* d_gate, S* d_up,
                          long count);
  /// GELU in its tanh form.
  void (*gelu)(const S* x, S* out, long count);
  void (*gelu_backward)(const S* d_out, const S* x, S* d_x, long count);

  kernels::LogSum<W> (*log_sum_exp)(const S* logits, long count);
  /// d_logits = gradient of the loss -log softmax(logits)[target] times `gradient`; sum: the
  /// log_sum_exp of the logits.
  void (*logits_backward)(const S* logits, const kernels::LogSum<W>& sum, W gradient, long target,
                          S* d_logits, long count);
  void (*add)(const W* from, W* to, long count);
};

extern const TransformerRows<float, float> kFloatTransformerBaseline;
extern const TransformerRows<float, float> kFloatTransformerAvx2;
extern const TransformerRows<float, float> kFloatTransformerAvx512;
extern const TransformerRows<double, double> kDoubleTransformerBaseline;
extern const TransformerRows<double, double> kDoubleTransformerAvx2;
extern const TransformerRows<double, double> kDoubleTransformerAvx512;
extern const TransformerRows<kernels::Bfloat16Bits, float> kBfloat16TransformerBaseline;
extern const TransformerRows<kernels::Bfloat16Bits, float> kBfloat16TransformerAvx2;
extern const TransformerRows<kernels::Bfloat16Bits, float> kBfloat16TransformerAvx512;

}  // namespace dtrain::model
