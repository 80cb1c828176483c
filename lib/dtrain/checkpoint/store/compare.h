// Compares two checkpoints, which may have different layouts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dtrain/checkpoint/store/reader.h"

namespace dtrain::checkpoint::store {

/// The differences in one tensor. Elements are compared by their bits if the dtypes are equal,
/// otherwise by their values. The difference between a NaN and an unequal element is infinite.
struct TensorDifference {
  std::string tensor;
  std::vector<std::int64_t> index;  ///< index of the first difference in row-major order
  double value_in_a = 0;            ///< the element at `index`
  double value_in_b = 0;
  double largest_absolute = 0;    ///< largest |a - b|
  double largest_relative = 0;    ///< largest |a - b| / max(|a|, |b|)
  std::int64_t num_elements = 0;  ///< number of differing elements
};

/// The result of a comparison; tensors are sorted by name.
struct Comparison {
  std::vector<std::string> only_in_a;
  std::vector<std::string> only_in_b;
  std::vector<std::string> of_other_shape;
  std::vector<TensorDifference> differences;
  std::int64_t num_tensors = 0;  ///< present in both

  [[nodiscard]] bool is_equal() const {
    return only_in_a.empty() && only_in_b.empty() && of_other_shape.empty() && differences.empty();
  }
};

/// Compares every tensor, a few MB at a time. Does not verify checksums.
///
/// Throws: as Reader.
[[nodiscard]] Comparison compare(Reader& a, Reader& b);

}  // namespace dtrain::checkpoint::store
