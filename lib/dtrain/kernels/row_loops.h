// Arithmetic of element-wise kernels that are compiled once for each instruction set, without FP
// contraction: an element's bits depend neither on the instruction set nor on its position, and sums
// over a row have a fixed order.
//
// No standard header is included here or in such kernels: its inline functions, compiled for one
// instruction set, could be linked into code for another.
#pragma once

#include "dtrain/kernels/row_values.h"

namespace dtrain::kernels {
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

template <typename S, typename W>
LogSum<W> log_sum_exp(const S* __restrict logits, long count) {
  W tops[kSums];
  for (long lane = 0; lane < kSums; ++lane) tops[lane] = wide(logits[0]);
  const long whole = count / kSums * kSums;
  for (long i = 0; i < whole; i += kSums) {
    for (long lane = 0; lane < kSums; ++lane) {
      const W logit = wide(logits[i + lane]);
      tops[lane] = tops[lane] < logit ? logit : tops[lane];
    }
  }
  for (long i = whole; i < count; ++i) {
    const W logit = wide(logits[i]);
    tops[0] = tops[0] < logit ? logit : tops[0];
  }
  W top = tops[0];
  for (const W other : tops) top = top < other ? other : top;
  const W sum = sum_of<W>(count, [=](long i) { return exponential(wide(logits[i]) - top); });
  return {top, static_cast<W>(__builtin_log(static_cast<double>(sum)))};
}

// L: the type of the logits; S: that of their gradient.
template <typename L, typename S, typename W>
void logits_backward(const L* __restrict logits, const LogSum<W>& sum, W gradient, long target,
                     S* __restrict d_logits, long count) {
  const W top = sum.top;
  const W log_sum = sum.log_sum;
  for (long i = 0; i < count; ++i) {
    d_logits[i] = narrowed<S>(gradient * exponential((wide(logits[i]) - top) - log_sum));
  }
  const W share = exponential((wide(logits[target]) - top) - log_sum);
  d_logits[target] = narrowed<S>(gradient * share - gradient);
}

template <typename W>
void add(const W* __restrict from, W* __restrict to, long count) {
  for (long i = 0; i < count; ++i) to[i] += from[i];
}

}  // namespace
}  // namespace dtrain::kernels
