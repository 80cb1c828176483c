// Auto-vectorized loops that level_rows_baseline.cpp, level_rows_avx2.cpp and level_rows_avx512.cpp
// each compile for one instruction set, without FP contraction. No standard header is included here:
// see row_loops.h.
#pragma once

#include "dtrain/kernels/row_loops.h"
#include "dtrain/model/bdh/internal/fused/level_rows.h"

namespace dtrain::model::bdh {
namespace {

using kernels::exponential;
using kernels::log_sum_exp;
using kernels::logits_backward;
using kernels::narrowed;
using kernels::sum_of;
using kernels::wide;

// Propagates NaN.
template <typename W>
W relu(W value) {
  return value < W{0} ? W{0} : value;
}

template <typename W>
W factor(const RowMask& mask, W scale, long i) {
  return mask.halves[i] < mask.threshold ? W{0} : scale;
}

template <typename S, typename W>
void rectify(const W* __restrict sums, S* __restrict out, long count) {
  for (long i = 0; i < count; ++i) out[i] = narrowed<S>(relu(sums[i]));
}

template <typename S, typename W>
void rotate(const S* __restrict xs, const W* __restrict rotations, S* __restrict q, long count) {
  for (long k = 0; k < count; k += 2) {
    const W a = wide(xs[k]);
    const W b = wide(xs[k + 1]);
    q[k] = narrowed<S>(a * rotations[k] - b * rotations[k + 1]);
    q[k + 1] = narrowed<S>(b * rotations[k] + a * rotations[k + 1]);
  }
}

template <typename S, typename W>
void gate(const W* __restrict sums, const S* __restrict xs, const RowMask& mask, S* __restrict ys,
          S* __restrict gated, long count) {
  rectify(sums, ys, count);
  if (mask.halves == nullptr) {
    for (long i = 0; i < count; ++i) gated[i] = narrowed<S>(wide(xs[i]) * wide(ys[i]));
    return;
  }
  const auto scale = static_cast<W>(mask.scale);
  for (long i = 0; i < count; ++i) {
    const S product = narrowed<S>(wide(xs[i]) * wide(ys[i]));
    gated[i] = narrowed<S>(wide(product) * factor(mask, scale, i));
  }
}

template <typename S, typename W, typename Factor>
void gate_backward_by(const W* __restrict d_gated, const S* __restrict xs, const Factor& factor_of,
                      S* __restrict ys, S* __restrict gated, S* __restrict d_sums, long count) {
  for (long i = 0; i < count; ++i) {
    const W by = factor_of(i);
    const W x = wide(xs[i]);
    const W y = wide(ys[i]);
    const W gradient = d_gated[i] * by;
    const W by_x = gradient * x;
    gated[i] = narrowed<S>(wide(narrowed<S>(x * y)) * by);
    d_sums[i] = narrowed<S>(y <= W{0} ? W{0} : by_x);  // propagates NaN
    ys[i] = narrowed<S>(gradient * y);
  }
}

template <typename S, typename W>
void gate_backward(const W* d_gated, const S* xs, const RowMask& mask, S* ys, S* gated, S* d_sums,
                   long count) {
  if (mask.halves == nullptr) {
    gate_backward_by(
        d_gated, xs, [](long) { return W{1}; }, ys, gated, d_sums, count);
    return;
  }
  const unsigned* halves = mask.halves;
  const unsigned threshold = mask.threshold;
  const auto scale = static_cast<W>(mask.scale);
  gate_backward_by(
      d_gated, xs, [=](long i) { return halves[i] < threshold ? W{0} : scale; }, ys, gated, d_sums,
      count);
}

template <typename S, typename W>
void encode_backward(const W* __restrict d_q, const S* __restrict d_xs, const S* __restrict xs,
                     const W* __restrict rotations, S* __restrict d_sums, long count) {
  for (long k = 0; k < count; k += 2) {
    const W a = d_q[k] * rotations[k] + d_q[k + 1] * rotations[k + 1] + wide(d_xs[k]);
    const W b = d_q[k + 1] * rotations[k] - d_q[k] * rotations[k + 1] + wide(d_xs[k + 1]);
    d_sums[k] = narrowed<S>(wide(xs[k]) <= W{0} ? W{0} : a);
    d_sums[k + 1] = narrowed<S>(wide(xs[k + 1]) <= W{0} ? W{0} : b);
  }
}

template <typename W>
W normalize(W* values, long count) {
  constexpr W kEpsilon = static_cast<W>(1e-5);
  const auto size = static_cast<W>(count);
  const W mean = sum_of<W>(count, [=](long i) { return values[i]; }) / size;
  for (long i = 0; i < count; ++i) values[i] -= mean;
  const W variance = sum_of<W>(count, [=](long i) { return values[i] * values[i]; }) / size;
  const W rstd = W{1} / static_cast<W>(__builtin_sqrt(static_cast<double>(variance + kEpsilon)));
  for (long i = 0; i < count; ++i) values[i] *= rstd;
  return rstd;
}

template <typename S, typename W>
void normalize_backward(W* __restrict gradient, const S* __restrict normalized, W rstd,
                        long count) {
  const auto size = static_cast<W>(count);
  const W mean = sum_of<W>(count, [=](long i) { return gradient[i]; }) / size;
  const W slope =
      sum_of<W>(count, [=](long i) { return gradient[i] * wide(normalized[i]); }) / size;
  for (long i = 0; i < count; ++i) {
    gradient[i] = (gradient[i] - mean - wide(normalized[i]) * slope) * rstd;
  }
}

template <typename S, typename W>
void narrow(const W* __restrict from, S* __restrict to, long count) {
  for (long i = 0; i < count; ++i) to[i] = narrowed<S>(from[i]);
}

template <typename S, typename W>
constexpr LevelRows<S, W> kRows{.rectify = rectify<S, W>,
                                .rotate = rotate<S, W>,
                                .gate = gate<S, W>,
                                .gate_backward = gate_backward<S, W>,
                                .encode_backward = encode_backward<S, W>,
                                .normalize = normalize<W>,
                                .normalize_backward = normalize_backward<S, W>,
                                .log_sum_exp = log_sum_exp<W, W>,
                                .logits_backward = logits_backward<W, S, W>,
                                .add = kernels::add<W>,
                                .narrow = narrow<S, W>};

}  // namespace
}  // namespace dtrain::model::bdh
