// Auto-vectorized loops that transformer_rows_baseline.cpp, transformer_rows_avx2.cpp and
// transformer_rows_avx512.cpp each compile for one instruction set, without FP contraction. No
// standard header is included here: see row_loops.h.
#pragma once

#include "dtrain/kernels/row_loops.h"
#include "dtrain/model/transformer/internal/transformer_rows.h"

namespace dtrain::model {
namespace {

using kernels::exponential;
using kernels::narrowed;
using kernels::sum_of;
using kernels::wide;

template <typename S, typename W>
W rms_norm(const S* __restrict x, const S* __restrict weight, double epsilon, S* __restrict out,
           long count) {
  const W squares = sum_of<W>(count, [=](long i) { return wide(x[i]) * wide(x[i]); });
  const W mean = squares / static_cast<W>(count);
  const auto scale = static_cast<W>(1 / __builtin_sqrt(static_cast<double>(mean) + epsilon));
  for (long i = 0; i < count; ++i) {
    out[i] = narrowed<S>(wide(narrowed<S>(wide(x[i]) * scale)) * wide(weight[i]));
  }
  return scale;
}

template <typename S, typename W>
void rms_norm_backward(const S* __restrict d_out, const S* __restrict x, const S* __restrict weight,
                       W scale, S* __restrict d_x, W* __restrict d_weight, long count) {
  const W along =
      sum_of<W>(count,
                [=](long i) { return wide(d_out[i]) * wide(weight[i]) * (wide(x[i]) * scale); }) /
      static_cast<W>(count);
  for (long i = 0; i < count; ++i) {
    d_x[i] = narrowed<S>((wide(d_out[i]) * wide(weight[i]) - wide(x[i]) * scale * along) * scale);
  }
  if (d_weight == nullptr) return;
  for (long i = 0; i < count; ++i) {
    d_weight[i] += wide(d_out[i]) * wide(narrowed<S>(wide(x[i]) * scale));
  }
}

template <typename S, typename W>
void rotate_halves(const S* __restrict x, const S* __restrict cosines, const S* __restrict sines,
                   W direction, S* __restrict out, long half) {
  for (long i = 0; i < half; ++i) {
    const W a = wide(x[i]);
    const W b = wide(x[half + i]);
    const W cosine = wide(cosines[i]);
    const W sine = direction * wide(sines[i]);
    out[i] = narrowed<S>(a * cosine - b * sine);
    out[half + i] = narrowed<S>(b * cosine + a * sine);
  }
}

// 1 / (1 + exp(-x)), without overflow; propagates NaN.
template <typename W>
W sigmoid(W x) {
  const W small = exponential(x < W{0} ? x : -x);
  return (x < W{0} ? small : W{1}) / (W{1} + small);
}

template <typename S, typename W>
void swiglu(const S* __restrict gate, const S* __restrict up, S* __restrict out, long count) {
  for (long i = 0; i < count; ++i) {
    const W x = wide(gate[i]);
    out[i] = narrowed<S>(wide(narrowed<S>(x * sigmoid(x))) * wide(up[i]));
  }
}

template <typename S, typename W>
void swiglu_backward(const S* __restrict d_out, const S* __restrict gate, const S* __restrict up,
                     S* __restrict d_gate, S* __restrict d_up, long count) {
  for (long i = 0; i < count; ++i) {
    const W x = wide(gate[i]);
    const W gradient = wide(d_out[i]);
    const W share = sigmoid(x);
    const W slope = share * (W{1} + x * (W{1} - share));
    d_gate[i] = narrowed<S>(gradient * wide(up[i]) * slope);
    d_up[i] = narrowed<S>(gradient * wide(narrowed<S>(x * share)));
  }
}

// GELU's tanh form is x * sigmoid(z) with z = 2 sqrt(2 / pi) (x + 0.044715 x³), because
// (1 + tanh(z / 2)) / 2 = sigmoid(z).
constexpr double kGeluFactor = 1.5957691216057307117597842397375;
constexpr double kGeluCube = 0.044715;

template <typename S, typename W>
void gelu(const S* __restrict xs, S* __restrict out, long count) {
  constexpr auto kFactor = static_cast<W>(kGeluFactor);
  constexpr auto kCube = static_cast<W>(kGeluCube);
  for (long i = 0; i < count; ++i) {
    const W x = wide(xs[i]);
    out[i] = narrowed<S>(x * sigmoid(kFactor * (x + kCube * x * x * x)));
  }
}

template <typename S, typename W>
void gelu_backward(const S* __restrict d_out, const S* __restrict xs, S* __restrict d_x,
                   long count) {
  constexpr auto kFactor = static_cast<W>(kGeluFactor);
  constexpr auto kCube = static_cast<W>(kGeluCube);
  for (long i = 0; i < count; ++i) {
    const W x = wide(xs[i]);
    const W share = sigmoid(kFactor * (x + kCube * x * x * x));
    const W dz = kFactor * (W{1} + 3 * kCube * x * x);
    d_x[i] = narrowed<S>(wide(d_out[i]) * (share + x * share * (W{1} - share) * dz));
  }
}

template <typename S, typename W>
constexpr TransformerRows<S, W> kTransformer{.rms_norm = rms_norm<S, W>,
                                             .rms_norm_backward = rms_norm_backward<S, W>,
                                             .rotate_halves = rotate_halves<S, W>,
                                             .swiglu = swiglu<S, W>,
                                             .swiglu_backward = swiglu_backward<S, W>,
                                             .gelu = gelu<S, W>,
                                             .gelu_backward = gelu_backward<S, W>,
                                             .log_sum_exp = kernels::log_sum_exp<S, W>,
                                             .logits_backward = kernels::logits_backward<S, S, W>,
                                             .add = kernels::add<W>};

}  // namespace
}  // namespace dtrain::model
