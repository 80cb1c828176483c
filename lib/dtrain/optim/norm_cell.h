// The sum of squares of one cell of the norm; shared by the CPU and device kernels.
#pragma once

#include <cstdint>

#include "dtrain/base/device_function.h"

namespace dtrain::optim {

/// Elements per cell; arena shards begin and end at cell boundaries.
inline constexpr std::int64_t kNormCell = 64;
/// Partial sums per cell, one per SIMD lane, so that the order of additions is fixed.
inline constexpr std::int64_t kNormLanes = 8;

/// Returns the sum of squares of values[lane], values[lane + kNormLanes], ... with indices below
/// count.
template <typename scalar_t>
[[nodiscard]] DTRAIN_DEVICE_FUNCTION double lane_sum(const scalar_t* values, std::int64_t count,
                                                     std::int64_t lane) {
  double sum = 0;
  for (std::int64_t i = lane; i < count; i += kNormLanes) {
    const auto value = static_cast<double>(values[i]);
    sum += value * value;
  }
  return sum;
}

/// Adds a cell's kNormLanes partial sums.
[[nodiscard]] DTRAIN_DEVICE_FUNCTION inline double sum_of_lanes(const double* sums) {
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

/// A block of values and the slots of its sums: one row of norm_sums_'s table.
struct NormBlock {
  std::int64_t first;         ///< index of its first value
  std::int64_t count;         ///< number of values, at most 4096
  std::int64_t slot;          ///< slot of the block's sum, or of its first cell's sum
  std::int64_t is_cell_wise;  ///< 1: one slot per cell

  [[nodiscard]] DTRAIN_DEVICE_FUNCTION std::int64_t num_cells() const {
    return (count + kNormCell - 1) / kNormCell;
  }
  /// Number of values in one cell.
  [[nodiscard]] DTRAIN_DEVICE_FUNCTION std::int64_t count_of(std::int64_t cell) const {
    const std::int64_t left = count - cell * kNormCell;
    return left < kNormCell ? left : kNormCell;
  }
};

}  // namespace dtrain::optim
