// Defines the summation order of n contributions, over the ranks of a group and over the
// microbatches of a step alike, so that a sum has the same bits however it is distributed.
//
// n = 2^k * q with q odd: groups of q consecutive contributions are summed left to right, then the
// 2^k group sums by a binary tree, neighbours first.
#pragma once

#include <cstdint>

#include "dtrain/base/device_function.h"

namespace dtrain::comm {

/// The exponent of 2 in the factorization of `n` > 0. Not std::countr_zero, which nvcc 13.0
/// compiles to the constant 64 in device code.
[[nodiscard]] DTRAIN_DEVICE_FUNCTION constexpr int factors_of_two(std::int64_t n) {
  int count = 0;
  for (; n % 2 == 0; n /= 2) ++count;
  return count;
}

/// q, the number of consecutive contributions that are summed left to right.
[[nodiscard]] DTRAIN_DEVICE_FUNCTION constexpr std::int64_t tree_group_size(std::int64_t n) {
  return n <= 0 ? 1 : n >> factors_of_two(n);
}

/// How to add one contribution to a stack of partial sums.
struct TreeStep {
  bool starts_slot = false;  ///< push it; otherwise add it to the top
  int merges = 0;            ///< then pop the top and add it to the new top, this many times
};

/// The step for contribution `index` of n. After the last one the stack holds only the sum; it
/// never holds more than 1 + k slots.
[[nodiscard]] constexpr TreeStep tree_step(std::int64_t index, std::int64_t n) {
  const std::int64_t q = tree_group_size(n);
  const bool ends_group = index % q == q - 1;
  return {.starts_slot = index % q == 0, .merges = ends_group ? factors_of_two(index / q + 1) : 0};
}

}  // namespace dtrain::comm
