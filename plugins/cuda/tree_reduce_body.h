// The per-thread code that sums the contributions of all ranks in tree order.
#pragma once

#include <ATen/OpMathType.h>

#include <algorithm>
#include <cstdint>

#include "cuda/pack.h"
#include "dtrain/base/device_function.h"
#include "dtrain/comm/tree_order.h"

namespace dtrain::cuda {

/// Maximum tree depth of the kernel variant that needs few registers: it serves rank counts
/// q * 2^k with q odd and k <= 6.
inline constexpr int kFewLevels = 6;
/// Tree levels of the variant for any number of ranks up to kMaxRanks.
inline constexpr int kMaxLevels = 15;
inline constexpr std::int64_t kMaxRanks = std::int64_t{1} << kMaxLevels;

/// Sum, or maximum, of two values; the maximum propagates NaN from either.
template <bool is_max, typename T>
[[nodiscard]] DTRAIN_DEVICE_FUNCTION T combined(T a, T b) {
  if constexpr (is_max) {
    return b > a || b != b ? b : a;
  } else {
    return static_cast<T>(a + b);
  }
}

/// output[i] = the sum (or maximum) over ranks r of parts[r * stride + i], in the order of
/// comm::reduce_in_tree_order. index: number of a pack. levels: those of the tree above the rank
/// groups.
template <typename T, bool is_max, int levels>
struct TreeReduceBody {
  /// Values per index. Pending partial sums are in registers, of which a thread has 255.
  static constexpr int kValues = levels <= kFewLevels ? kPack<T> : std::min(kPack<T>, 4);

  const T* parts;
  std::int64_t stride;  ///< also the number of output values
  std::int64_t ranks;
  T* output;

  [[nodiscard]] std::int64_t size() const { return packs_of(kValues, stride); }

  DTRAIN_DEVICE_FUNCTION void operator()(std::int64_t index) const {
    const std::int64_t at = index * kValues;
    const std::int64_t left = stride - at;
    const std::int64_t ranks_of_group = comm::tree_group_size(ranks);
    // Partial sums that wait for their sibling, one per level. All indices are compile-time constants,
    // so that they stay in registers.
    Sums waiting[levels];
    Sums sums;
    Pack<T, kValues> next = load<T, kValues>(parts + at, left);
    std::int64_t of_group = 0;
    for (std::int64_t rank = 0, group = 0; rank < ranks; ++rank) {
      const Sums own = widened(next);
      if (rank + 1 < ranks) next = load<T, kValues>(parts + (rank + 1) * stride + at, left);
      sums = of_group == 0 ? own : added(sums, own);
      if (++of_group < ranks_of_group) continue;
      of_group = 0;
      carry<0>(group, waiting, sums);
      ++group;
    }
    store(narrowed(sums), output + at, left);
  }

 private:
  using Wide = at::opmath_type<T>;
  struct Sums {
    Wide values[kValues];
  };

  // Adds a sum of 2^level groups, the last of which is `group`, to its sibling if that is complete;
  // otherwise stores it.
  template <int level>
  static DTRAIN_DEVICE_FUNCTION void carry(std::int64_t group, Sums (&waiting)[levels],
                                           Sums& sums) {
    if constexpr (level < levels) {
      if ((group >> level & 1) == 0) {
        waiting[level] = sums;
        return;
      }
      sums = added(waiting[level], sums);
      carry<level + 1>(group, waiting, sums);
    }
  }

  [[nodiscard]] static DTRAIN_DEVICE_FUNCTION Sums widened(const Pack<T, kValues>& pack) {
    Sums sums;
    for (int i = 0; i < kValues; ++i) sums.values[i] = static_cast<Wide>(pack.values[i]);
    return sums;
  }
  [[nodiscard]] static DTRAIN_DEVICE_FUNCTION Pack<T, kValues> narrowed(const Sums& sums) {
    Pack<T, kValues> pack;
    for (int i = 0; i < kValues; ++i) pack.values[i] = static_cast<T>(sums.values[i]);
    return pack;
  }
  [[nodiscard]] static DTRAIN_DEVICE_FUNCTION Sums added(const Sums& a, const Sums& b) {
    Sums sums;
    for (int i = 0; i < kValues; ++i) {
      sums.values[i] = combined<is_max>(a.values[i], b.values[i]);
    }
    return sums;
  }
};

}  // namespace dtrain::cuda
