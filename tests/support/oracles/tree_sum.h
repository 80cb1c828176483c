// Adds the values of an array in the order of comm/tree_order.h. Does not need LibTorch.
#pragma once

#include <array>
#include <cstdint>

#include "dtrain/comm/tree_order.h"

namespace dtrain::testing {

/// Calls add(into, from) with indices below n for each addition, in order. The last addition leaves
/// the sum at index 0.
template <typename Add>
void add_in_tree_order(std::int64_t n, Add&& add) {
  std::array<std::int64_t, 64> stack{};
  std::size_t depth = 0;
  for (std::int64_t index = 0; index < n; ++index) {
    const comm::TreeStep step = comm::tree_step(index, n);
    if (step.starts_slot) {
      stack[depth++] = index;
    } else {
      add(stack[depth - 1], index);
    }
    for (int merge = 0; merge < step.merges; ++merge, --depth) {
      add(stack[depth - 2], stack[depth - 1]);
    }
  }
}

}  // namespace dtrain::testing
