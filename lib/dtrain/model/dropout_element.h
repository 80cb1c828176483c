// Dropout's random bits and their effect on one element; shared by the CPU and device kernels.
#pragma once

#include <ATen/OpMathType.h>

#include <cmath>
#include <cstdint>

#include "dtrain/base/device_function.h"
#include "dtrain/base/philox.h"

namespace dtrain::model {

/// Neurons per block of random bits, 16 bits each: 8 Philox counters x 4 words x 2 halves.
inline constexpr std::int64_t kDropoutBlock = 64;

/// Words 1 to 3 of the Philox counters, equal for all neurons of a (sample, level, position).
struct DropoutRow {
  std::uint32_t position = 0;
  std::uint32_t sample_low = 0;
  std::uint32_t level_and_sample_high = 0;
};

/// Writes 16 random bits for each neuron of a block: halves[i], i < kDropoutBlock, belongs to
/// neuron block * kDropoutBlock + i and is half i / 8 (low halves first) of the output words of
/// counter {block * 8 + i % 8, row}. This order puts adjacent neurons in adjacent SIMD lanes.
void random_halves(std::uint32_t block, const DropoutRow& row, base::PhiloxKey key,
                   std::uint32_t* halves);

/// Drops an element if its random bits are below `threshold`; otherwise multiplies it by `scale`,
/// which has the compute type of scalar_t.
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

/// random: 16 random bits.
template <typename scalar_t>
[[nodiscard]] DTRAIN_DEVICE_FUNCTION inline bool is_kept(std::uint32_t random,
                                                         const DropRule<scalar_t>& rule) {
  return random >= rule.threshold;
}

/// Multiplies by 0 instead of selecting 0: a conditional multiplication might trap, so compilers do
/// not vectorize it.
template <typename scalar_t>
[[gnu::always_inline]] DTRAIN_DEVICE_FUNCTION inline scalar_t dropped(scalar_t value, bool is_kept,
                                                                      DropRule<scalar_t> rule) {
  using Wide = at::opmath_type<scalar_t>;
  const Wide factor = is_kept ? rule.scale : Wide{0};
  return static_cast<scalar_t>(static_cast<Wide>(value) * factor);
}

/// The counter words of one position of one sample.
[[nodiscard]] DTRAIN_DEVICE_FUNCTION inline DropoutRow dropout_row(std::int64_t sample,
                                                                   std::int64_t level,
                                                                   std::int64_t position) {
  return {static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(sample),
          static_cast<std::uint32_t>(level << 16 | (sample >> 32 & 0xFFFF))};
}

/// Maps the rows of a tensor (heads, samples, positions, neurons) to Philox counters.
struct DropoutRows {
  std::int64_t samples;
  std::int64_t positions;
  std::int64_t neurons;  ///< per row
  std::int64_t level;
  const std::int64_t* first_sample;
  std::int64_t first_neuron;

  /// The counter words of the row at one position of one sample of this tensor.
  [[nodiscard]] DTRAIN_DEVICE_FUNCTION DropoutRow counters_of(std::int64_t sample,
                                                              std::int64_t position) const {
    return dropout_row(*first_sample + sample, level, position);
  }
  /// The number of a head's first neuron, counted over all heads.
  [[nodiscard]] DTRAIN_DEVICE_FUNCTION std::int64_t first_of(std::int64_t head) const {
    return first_neuron + head * neurons;
  }
};

}  // namespace dtrain::model
