// What one thread does that adds the contributions of all ranks: a plain function of an index.
#pragma once

#include <ATen/OpMathType.h>

#include <cstdint>

#include "dtrain/base/device_function.h"
#include "dtrain/comm/tree_order.h"

namespace dtrain::cuda {

/// NaN wins, whichever rank it comes from.
template <bool is_max, typename T>
[[nodiscard]] DTRAIN_DEVICE_FUNCTION T combined(T a, T b) {
  if constexpr (is_max) {
    return b > a || b != b ? b : a;
  } else {
    return static_cast<T>(a + b);
  }
}

/// output[i] = the sum (or maximum) over r of parts[r * stride + i], added in tree order as
/// comm::reduce_in_tree_order does.
template <typename T, bool is_max>
struct TreeReduceBody {
  /// Ranks at most: the stack below holds 1 + log2 of them.
  static constexpr std::int64_t kMaxRanks = std::int64_t{1} << 15;

  const T* parts;
  std::int64_t stride;
  std::int64_t ranks;
  T* output;

  DTRAIN_DEVICE_FUNCTION void operator()(std::int64_t i) const {
    using Wide = at::opmath_type<T>;
    Wide stack[17];
    int depth = 0;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const auto value = static_cast<Wide>(parts[rank * stride + i]);
      const comm::TreeStep step = comm::tree_step(rank, ranks);
      if (step.starts_slot) {
        stack[depth++] = value;
      } else {
        stack[depth - 1] = combined<is_max>(stack[depth - 1], value);
      }
      for (int merge = 0; merge < step.merges; ++merge, --depth) {
        stack[depth - 2] = combined<is_max>(stack[depth - 2], stack[depth - 1]);
      }
    }
    output[i] = static_cast<T>(stack[0]);
  }
};

}  // namespace dtrain::cuda
