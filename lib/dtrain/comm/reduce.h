// Element-wise reduction of all ranks' contributions in tree order, and the slicing of tensors
// among ranks.
#pragma once

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "dtrain/comm/operation.h"

namespace dtrain::comm {

/// Returns whether a dtype can be reduced: float32, float64, bfloat16, float16, int64 and uint8.
[[nodiscard]] bool is_reducible(at::ScalarType dtype);

/// output[i] = the sum (or maximum; NaN wins) over all inputs[r][i], added in the order of
/// tree_order.h. bfloat16 and float16 are added in float32 and rounded once, at the end.
///
/// Shapes:  every input and the output: count elements of dtype; the output may be one of the
///          inputs.
/// Threads: runs in the caller's thread alone.
void reduce_in_tree_order(std::span<const std::byte* const> inputs, std::byte* output,
                          std::int64_t count, at::ScalarType dtype, ReduceOp op);

/// Slices begin at multiples of this many elements, which are whole cache lines.
inline constexpr std::int64_t kSliceGrain = 64;

/// Start of slice `index` of `slices`, which ends where the next begins. Units: elements.
[[nodiscard]] constexpr std::int64_t slice_begin(std::int64_t num_elements, std::int64_t slices,
                                                 std::int64_t index) {
  const std::int64_t grains = (num_elements + kSliceGrain - 1) / kSliceGrain;
  const std::int64_t begin = grains * index / slices * kSliceGrain;
  return begin < num_elements ? begin : num_elements;
}

/// Bytes of a rank's staging area, through which it sends tensors outside shared memory: small
/// enough for the caches, and at least one grain of the widest elements for each rank.
[[nodiscard]] constexpr std::int64_t staging_bytes(std::int64_t ranks) {
  constexpr std::int64_t kCached = 1 << 20;
  constexpr std::int64_t kWidest = 8;
  return std::max(kCached, ranks * kSliceGrain * kWidest);
}

/// Elements of each rank's slice that a staging area holds at once: whole grains, at least one.
[[nodiscard]] constexpr std::int64_t staged_slice(std::int64_t ranks, std::int64_t element_bytes) {
  return staging_bytes(ranks) / ranks / kSliceGrain / element_bytes * kSliceGrain;
}

}  // namespace dtrain::comm
