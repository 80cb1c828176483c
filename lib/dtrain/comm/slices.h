// Cuts a tensor into one slice per rank.
#pragma once

#include <algorithm>
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

/// Bytes of the area through which a rank of a group hands others what they cannot reach: it stays
/// in the caches, and holds a grain of the widest elements for each rank of a large group.
[[nodiscard]] constexpr std::int64_t staging_bytes(std::int64_t ranks) {
  constexpr std::int64_t kCached = 1 << 20;
  constexpr std::int64_t kWidest = 8;
  return std::max(kCached, ranks * kSliceGrain * kWidest);
}

/// How many elements of each rank's slice that area holds at once: whole grains, at least one.
[[nodiscard]] constexpr std::int64_t staged_slice(std::int64_t ranks, std::int64_t element_bytes) {
  return staging_bytes(ranks) / ranks / kSliceGrain / element_bytes * kSliceGrain;
}

}  // namespace dtrain::comm
