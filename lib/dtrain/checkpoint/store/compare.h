// Compares two checkpoints, whatever layouts wrote them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dtrain/checkpoint/store/reader.h"

namespace dtrain::checkpoint::store {

/// The comparison of one tensor. Elements of one dtype are equal if their bits are, of different
/// dtypes if their values are. A NaN is infinitely far from all that it is not equal to.
struct TensorDifference {
  std::string tensor;
  std::vector<std::int64_t> index;  ///< of the first element that differs, in row-major order
  double value_in_a = 0;            ///< that element
  double value_in_b = 0;
  double largest_absolute = 0;    ///< of a - b, over all elements
  double largest_relative = 0;    ///< of (a - b) to the larger of the two
  std::int64_t num_elements = 0;  ///< that differ
};

/// Tensors by name, in the order of their names.
struct Comparison {
  std::vector<std::string> only_in_a;
  std::vector<std::string> only_in_b;
  std::vector<std::string> of_other_shape;
  std::vector<TensorDifference> differences;
  std::int64_t num_tensors = 0;  ///< in both

  [[nodiscard]] bool is_equal() const {
    return only_in_a.empty() && only_in_b.empty() && of_other_shape.empty() && differences.empty();
  }
};

/// Compares every tensor, a few MB of it at a time. Trusts the files: checks no checksums.
///
/// Throws: as Reader.
[[nodiscard]] Comparison compare(Reader& a, Reader& b);

}  // namespace dtrain::checkpoint::store
