// The random bits of dropout, a block of neurons at a time.
#pragma once

#include <cstdint>

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

/// The same by base::philox, for processors without AVX2 and for tests.
void random_halves_portable(std::uint32_t block, const DropoutRow& row, base::PhiloxKey key,
                            std::uint32_t* halves);

}  // namespace dtrain::model
