// How a tensor is cut in one slice per rank.
#pragma once

#include <cstdint>

namespace dtrain::comm {

/// Slices begin at multiples of this many elements, which are whole cache lines.
inline constexpr std::int64_t kSliceGrain = 64;

/// Where slice `index` of `slices` begins; slice `index` ends where the next begins. Units:
/// elements.
[[nodiscard]] constexpr std::int64_t slice_begin(std::int64_t num_elements, std::int64_t slices,
                                                 std::int64_t index) {
  const std::int64_t grains = (num_elements + kSliceGrain - 1) / kSliceGrain;
  const std::int64_t begin = grains * index / slices * kSliceGrain;
  return begin < num_elements ? begin : num_elements;
}

}  // namespace dtrain::comm
