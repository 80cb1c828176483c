// Rectangular parts of tensors and their intersections.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace dtrain::checkpoint::format {

/// `sizes` elements of a tensor from `offsets`, one entry for each dim; its values are row-major.
/// Without dims it is a scalar's one element.
struct Box {
  std::vector<std::int64_t> offsets;
  std::vector<std::int64_t> sizes;

  bool operator==(const Box&) const = default;
};

/// The whole of a tensor.
[[nodiscard]] Box whole(std::span<const std::int64_t> shape);

/// Throws: nothing; sizes must be checked (fits) before.
[[nodiscard]] std::int64_t num_elements(std::span<const std::int64_t> sizes);

/// Returns whether the box has the shape's dims and lies within it.
[[nodiscard]] bool fits(const Box& box, std::span<const std::int64_t> shape);

/// The boxes that make up values [begin, end) of a tensor in row-major order: one where whole rows
/// are cut, up to 2 * dims - 1 where not.
[[nodiscard]] std::vector<Box> boxes_of_run(std::span<const std::int64_t> shape, std::int64_t begin,
                                            std::int64_t end);

/// Returns whether two boxes of one tensor share no element.
[[nodiscard]] bool are_disjoint(const Box& a, const Box& b);

/// `count` elements that lie one after the other in both boxes. Units: elements.
struct CommonRun {
  std::int64_t in_a = 0;  ///< position among a's values
  std::int64_t in_b = 0;
  std::int64_t count = 0;

  bool operator==(const CommonRun&) const = default;
};

/// Returns the elements that two boxes of one tensor share, as the longest runs in row-major order.
[[nodiscard]] std::vector<CommonRun> common_runs(const Box& a, const Box& b);

}  // namespace dtrain::checkpoint::format
