// The element-wise work of fused blocks, a row at a time, compiled for each instruction set.
#pragma once

#include "dtrain/kernels/instruction_set.h"

namespace dtrain::model::bdh {

/// bfloat16 for code that must not see LibTorch's headers; laid out as c10::BFloat16.
struct Bfloat16Bits {
  unsigned short bits;
};

/// Random halves (dropout_element.h) and what they decide; halves null: nothing is dropped.
struct RowMask {
  const unsigned* halves = nullptr;
  unsigned threshold = 0;
  double scale = 1;
};

/// log sum exp(logits) = top + log_sum, where top is the largest logit: kept apart, since their sum
/// would round the shares of tokens that are nearly certain.
template <typename W>
struct LogSum {
  W top;
  W log_sum;
};

/// Rows of `count` elements. S is what tensors hold, W what is computed in: float for S bfloat16,
/// else S. Contraction is off, so that an element's bits depend on neither the instruction set nor
/// its place in the row; sums over a row are made in a fixed order.
template <typename S, typename W>
struct LevelRows {
  void (*rectify)(const W* sums, S* out, long count);
  /// q = xs with each pair (2k, 2k + 1) turned by (cosine, sine) turns[2k, 2k + 1].
  void (*turn)(const S* xs, const W* turns, S* q, long count);
  /// ys = relu(sums); gated = xs ys, masked.
  void (*gate)(const W* sums, const S* xs, const RowMask& mask, S* ys, S* gated, long count);
  /// From the gradient of gated: that of the sums behind ys, and what xs gets by the gate, which
  /// takes the place of ys. Writes gated again.
  void (*gate_backward)(const W* d_gated, const S* xs, const RowMask& mask, S* ys, S* gated,
                        S* d_sums, long count);
  /// d_sums = (d_q turned back + d_xs), 0 where xs is not positive.
  void (*encode_backward)(const W* d_q, const S* d_xs, const S* xs, const W* turns, S* d_sums,
                          long count);

  /// Subtracts the mean and divides by the deviation; returns one over the deviation.
  W (*normalize)(W* values, long count);
  /// gradient: of the normalized values, becomes that of the values before.
  void (*normalize_backward)(W* gradient, const S* normalized, W rstd, long count);

  LogSum<W> (*log_sum_exp)(const W* logits, long count);
  /// The gradient of gradient * (-log softmax(logits)[target]) by the logits, of which `sum` is the
  /// log_sum_exp.
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
