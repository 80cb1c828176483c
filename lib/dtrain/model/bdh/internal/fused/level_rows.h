// Element-wise kernels of fused blocks, one row at a time, compiled for each instruction set.
#pragma once

#include "dtrain/kernels/instruction_set.h"
#include "dtrain/kernels/row_values.h"

namespace dtrain::model::bdh {

using kernels::Bfloat16Bits;
using kernels::LogSum;

/// A row's dropout mask: drops elements whose random half (dropout_element.h) is below `threshold`,
/// and scales the rest; null halves disable dropout.
struct RowMask {
  const unsigned* halves = nullptr;
  unsigned threshold = 0;
  double scale = 1;
};

/// Kernels on rows of `count` elements. S is the storage type, W the compute type: float for
/// bfloat16, otherwise S. FP contraction is off, so an element's bits depend neither on the
/// instruction set nor on its position; sums over a row have a fixed order.
template <typename S, typename W>
struct LevelRows {
  void (*rectify)(const W* sums, S* out, long count);
  /// q = xs with each pair (2k, 2k + 1) rotated by (cosine, sine) = rotations[2k, 2k + 1].
  void (*rotate)(const S* xs, const W* rotations, S* q, long count);
  /// ys = relu(sums); gated = dropout(xs ys).
  void (*gate)(const W* sums, const S* xs, const RowMask& mask, S* ys, S* gated, long count);
  /// From d_gated, computes d_sums, overwrites ys with the gradient of xs through the gate, and
  /// recomputes gated.
  void (*gate_backward)(const W* d_gated, const S* xs, const RowMask& mask, S* ys, S* gated,
                        S* d_sums, long count);
  /// d_sums = inverse rotation of d_q + d_xs, or 0 where xs is not positive.
  void (*encode_backward)(const W* d_q, const S* d_xs, const S* xs, const W* rotations, S* d_sums,
                          long count);

  /// Normalizes in place to mean 0 and deviation 1; returns the reciprocal deviation.
  W (*normalize)(W* values, long count);
  /// Replaces the gradient of the normalized values by that of the input values.
  void (*normalize_backward)(W* gradient, const S* normalized, W rstd, long count);

  LogSum<W> (*log_sum_exp)(const W* logits, long count);
  /// d_logits = gradient of the loss -log softmax(logits)[target] times `gradient`; sum: the
  /// log_sum_exp of the logits.
  void (*logits_backward)(const W* logits, const LogSum<W>& sum, W gradient, long target,
                          S* d_logits, long count);

  void (*add)(const W* from, W* to, long count);
  void (*narrow)(const W* from, S* to, long count);
};

extern const LevelRows<float, float> kFloatRowsBaseline;
extern const LevelRows<float, float> kFloatRowsAvx2;
extern const LevelRows<float, float> kFloatRowsAvx512;
extern const LevelRows<double, double> kDoubleRowsBaseline;
extern const LevelRows<double, double> kDoubleRowsAvx2;
extern const LevelRows<double, double> kDoubleRowsAvx512;
extern const LevelRows<Bfloat16Bits, float> kBfloat16RowsBaseline;
extern const LevelRows<Bfloat16Bits, float> kBfloat16RowsAvx2;
extern const LevelRows<Bfloat16Bits, float> kBfloat16RowsAvx512;

}  // namespace dtrain::model::bdh
