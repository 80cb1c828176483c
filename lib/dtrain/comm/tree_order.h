// The one order in which n contributions are added: over the ranks of a group and over the
// microbatches of a step alike, so that a sum has the same bits however it is spread.
//
// n = 2^k * q with q odd: groups of q consecutive contributions are summed left to right, then the
// 2^k group sums by a binary tree, neighbours first.
#pragma once

#include <bit>
#include <cstdint>

namespace dtrain::comm {

/// q: how many consecutive contributions are summed left to right.
[[nodiscard]] constexpr std::int64_t tree_group_size(std::int64_t n) {
  return n <= 0 ? 1 : n >> std::countr_zero(static_cast<std::uint64_t>(n));
}

/// How to add one contribution when they come one at a time, on a stack of partial sums.
struct TreeStep {
  bool starts_slot = false;  ///< it becomes a new top of the stack; else it is added to the top
  int merges = 0;  ///< how often then the top is added to the one beneath it and taken off
};

/// The step for contribution `index` of n. After the last one the stack holds the sum alone; it
/// never holds more than 1 + k slots, the contribution at hand included.
[[nodiscard]] constexpr TreeStep tree_step(std::int64_t index, std::int64_t n) {
  const std::int64_t q = tree_group_size(n);
  const bool ends_group = index % q == q - 1;
  const auto groups = static_cast<std::uint64_t>(index / q + 1);
  return {.starts_slot = index % q == 0, .merges = ends_group ? std::countr_zero(groups) : 0};
}

}  // namespace dtrain::comm
