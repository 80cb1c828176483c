// Auto-vectorized loops that level_rows_baseline.cpp, level_rows_avx2.cpp and level_rows_avx512.cpp
// each compile for one instruction set, without FP contraction.
//
// No standard header is included here: its inline functions, compiled for one instruction set,
// could be linked into code for another.
#pragma once

#include "dtrain/model/bdh/internal/fused/level_rows.h"

namespace dtrain::model::bdh {
namespace {

/// Converts a value to the type that kernels compute in.
inline float wide(float value) { return value; }
inline double wide(double value) { return value; }
inline float wide(Bfloat16Bits value) {
  const unsigned bits = static_cast<unsigned>(value.bits) << 16;
  float result;
  __builtin_memcpy(&result, &bits, sizeof(result));
  return result;
}

template <typename S, typename W>
S narrowed(W value) {
  if constexpr (sizeof(S) == sizeof(W)) {
    return value;
  } else {
    unsigned bits;
    __builtin_memcpy(&bits, &value, sizeof(bits));
    // Round to nearest, ties to even; NaN stays NaN.
    const unsigned rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    return {static_cast<unsigned short>(value != value ? 0x7FC0 : rounded)};
  }
}

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

// Sixteen interleaved partial sums, then their sum: the same order for every instruction set.
constexpr long kSums = 16;

template <typename W, typename Term>
W sum_of(long count, const Term& term) {
  W sums[kSums] = {};
  const long whole = count / kSums * kSums;
  for (long i = 0; i < whole; i += kSums) {
    for (long lane = 0; lane < kSums; ++lane) sums[lane] += term(i + lane);
  }
  for (long i = whole; i < count; ++i) sums[i - whole] += term(i);
  W total = 0;
  for (const W sum : sums) total += sum;
  return total;
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

// Constants of exp's range reduction x = n ln 2 + r for each type. Adding and subtracting kMagic
// rounds to an integer n, which the low bits of kMagic + n contain.
template <typename W>
struct Exponent;
template <>
struct Exponent<float> {
  using Bits = unsigned;
  static constexpr float kLowest = -87;  // results below it would be subnormal
  static constexpr float kMagic = 0x1.8p23F;
  static constexpr float kLn2High = 0x1.62e4p-1F;  // n * kLn2High is exact
  static constexpr float kLn2Low = 0x1.7f7d1cp-20F;
  static constexpr int kMantissa = 23;
  static constexpr int kTerms = 7;
};
template <>
struct Exponent<double> {
  using Bits = unsigned long;
  static constexpr double kLowest = -708;
  static constexpr double kMagic = 0x1.8p52;
  static constexpr double kLn2High = 0x1.62e42feep-1;
  static constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
  static constexpr int kMantissa = 52;
  static constexpr int kTerms = 13;
};

// exp(x) for x <= 88 with an error below 2 ulp; flushes subnormal results to 0; propagates NaN.
template <typename W>
W exponential(W x) {
  using E = Exponent<W>;
  using Bits = typename E::Bits;
  const W bounded = x < E::kLowest ? E::kLowest : x;
  const W shifted = bounded * static_cast<W>(0x1.71547652b82fep+0) + E::kMagic;
  const W whole = shifted - E::kMagic;
  const W r = (bounded - whole * E::kLn2High) - whole * E::kLn2Low;
  W sum = 1;  // sum of r^k / k!
  for (int k = E::kTerms; k > 0; --k) sum = 1 + sum * r * (W{1} / static_cast<W>(k));
  Bits bits;
  __builtin_memcpy(&bits, &shifted, sizeof(bits));
  const W one = 1;
  Bits power;
  __builtin_memcpy(&power, &one, sizeof(power));
  power += bits << E::kMantissa;  // 2^n, also for negative n
  W scale;
  __builtin_memcpy(&scale, &power, sizeof(scale));
  return x < E::kLowest ? W{0} : sum * scale;
}

template <typename W>
LogSum<W> log_sum_exp(const W* __restrict logits, long count) {
  W tops[kSums];
  for (long lane = 0; lane < kSums; ++lane) tops[lane] = logits[0];
  const long whole = count / kSums * kSums;
  for (long i = 0; i < whole; i += kSums) {
    for (long lane = 0; lane < kSums; ++lane) {
      tops[lane] = tops[lane] < logits[i + lane] ? logits[i + lane] : tops[lane];
    }
  }
  for (long i = whole; i < count; ++i) tops[0] = tops[0] < logits[i] ? logits[i] : tops[0];
  W top = tops[0];
  for (const W other : tops) top = top < other ? other : top;
  const W sum = sum_of<W>(count, [=](long i) { return exponential(logits[i] - top); });
  return {top, static_cast<W>(__builtin_log(static_cast<double>(sum)))};
}

template <typename S, typename W>
void logits_backward(const W* __restrict logits, const LogSum<W>& sum, W gradient, long target,
                     S* __restrict d_logits, long count) {
  const W top = sum.top;
  const W log_sum = sum.log_sum;
  for (long i = 0; i < count; ++i) {
    d_logits[i] = narrowed<S>(gradient * exponential((logits[i] - top) - log_sum));
  }
  const W share = exponential((logits[target] - top) - log_sum);
  d_logits[target] = narrowed<S>(gradient * share - gradient);
}

template <typename W>
void add(const W* __restrict from, W* __restrict to, long count) {
  for (long i = 0; i < count; ++i) to[i] += from[i];
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
                                .log_sum_exp = log_sum_exp<W>,
                                .logits_backward = logits_backward<S, W>,
                                .add = add<W>,
                                .narrow = narrow<S, W>};

}  // namespace
}  // namespace dtrain::model::bdh
