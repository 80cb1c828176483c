// The random bits of dropout and what they do to one element, for the CPU and for kernels of
// devices.
#pragma once

#include <ATen/OpMathType.h>

#include <cmath>
#include <cstdint>

#include "dtrain/base/device_function.h"
#include "dtrain/base/philox.h"

namespace dtrain::model {

/// Neurons that share a block: eight Philox counters, each of four words of two 16-bit halves.
inline constexpr std::int64_t kDropoutBlock = 64;

/// Words 1 to 3 of the counters, which the neurons of one (sample, level, position) share.
struct DropoutRow {
  std::uint32_t position = 0;
  std::uint32_t sample_low = 0;
  std::uint32_t level_and_sample_high = 0;
};

/// halves[i], i < kDropoutBlock: 16 random bits of neuron block * kDropoutBlock + i, which are half
/// i / 8 (low halves first) of the words of counter {block * 8 + i % 8, row}: neighbours lie in the
/// lanes of one vector register.
void random_halves(std::uint32_t block, const DropoutRow& row, base::PhiloxKey key,
                   std::uint32_t* halves);

/// scale: in the type that scalar_t is multiplied in.
template <typename scalar_t>
struct DropRule {
  std::uint32_t threshold;
  at::opmath_type<scalar_t> scale;
};

template <typename scalar_t>
[[nodiscard]] DropRule<scalar_t> drop_rule(double probability) {
  const auto threshold = static_cast<std::uint32_t>(std::lround(probability * 65536.0));
  return {threshold, static_cast<at::opmath_type<scalar_t>>(65536.0 / (65536.0 - threshold))};
}

/// random: 16 bits.
template <typename scalar_t>
[[nodiscard]] DTRAIN_DEVICE_FUNCTION inline bool is_kept(std::uint32_t random,
                                                         const DropRule<scalar_t>& rule) {
  return random >= rule.threshold;
}

/// Multiplies by zero rather than choosing a zero, because a product that might trap keeps the
/// compiler from using vector instructions.
template <typename scalar_t>
[[gnu::always_inline]] DTRAIN_DEVICE_FUNCTION inline scalar_t dropped(scalar_t value, bool is_kept,
                                                                      DropRule<scalar_t> rule) {
  using Wide = at::opmath_type<scalar_t>;
  const Wide factor = is_kept ? rule.scale : Wide{0};
  return static_cast<scalar_t>(static_cast<Wide>(value) * factor);
}

/// The counters of one position of one sample.
[[nodiscard]] DTRAIN_DEVICE_FUNCTION inline DropoutRow dropout_row(std::int64_t sample,
                                                                   std::int64_t level,
                                                                   std::int64_t position) {
  return {static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(sample),
          static_cast<std::uint32_t>(level << 16 | (sample >> 32 & 0xFFFF))};
}

/// The rows of a tensor (heads, samples, positions, neurons) in the whole model and data.
struct DropoutRows {
  std::int64_t samples;
  std::int64_t positions;
  std::int64_t neurons;  ///< of a row
  std::int64_t level;
  const std::int64_t* first_sample;
  std::int64_t first_neuron;

  /// Of the row at one position of one sample of this tensor.
  [[nodiscard]] DTRAIN_DEVICE_FUNCTION DropoutRow counters_of(std::int64_t sample,
                                                              std::int64_t position) const {
    return dropout_row(*first_sample + sample, level, position);
  }
  /// The number of a head's first neuron, counted through all heads.
  [[nodiscard]] DTRAIN_DEVICE_FUNCTION std::int64_t first_of(std::int64_t head) const {
    return first_neuron + head * neurons;
  }
};

}  // namespace dtrain::model
