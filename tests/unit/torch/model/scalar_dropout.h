// Dropout's rule for one neuron, as docs/model.md states it: no vectors, no blocks, no batches.
#pragma once

#include <cmath>
#include <cstdint>

#include "dtrain/base/philox.h"

namespace dtrain::testing {

/// One neuron of one token. `neuron` counts through all heads.
struct NeuronPlace {
  std::uint64_t seed = 0;
  std::int64_t level = 0;
  std::int64_t sample = 0;
  std::int64_t position = 0;
  std::int64_t neuron = 0;
};

/// The factor of its value: 0, or the inverse of the share kept.
inline double scalar_dropout(const NeuronPlace& place, double probability) {
  const std::int64_t counter = place.neuron / 64 * 8 + place.neuron % 8;
  const auto words =
      base::philox({static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(place.position),
                    static_cast<std::uint32_t>(place.sample),
                    static_cast<std::uint32_t>(place.level * 65536 + (place.sample >> 32))},
                   base::philox_key(place.seed, base::RandomPurpose::dropout));
  const std::int64_t half = place.neuron / 8 % 8;
  const std::uint32_t word = words[static_cast<std::size_t>(half / 2)];
  const std::uint32_t bits = half % 2 == 0 ? word & 0xFFFF : word >> 16;
  const double threshold = std::round(probability * 65536);
  return bits < threshold ? 0 : 65536 / (65536 - threshold);
}

}  // namespace dtrain::testing
