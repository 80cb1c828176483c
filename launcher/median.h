// Median.
#pragma once

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

namespace launcher {

/// The upper one of two in the middle.
///
/// Requires: at least one value.
template <typename Value>
[[nodiscard]] Value median(std::vector<Value> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace launcher
