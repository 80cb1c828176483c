// Rectangular parts of tensors and their intersections.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace dtrain::checkpoint::format {

/// A hyperrectangle of a tensor: `offsets` and `sizes` per dim; its values are row-major. Without
/// dims it is the single element of a scalar.
struct Box {
  std::vector<std::int64_t> offsets;
  std::vector<std::int64_t> sizes;

  bool operator==(const Box&) const = default;
};

/// Returns the box that covers a whole tensor.
[[nodiscard]] Box whole(std::span<const std::int64_t> shape);

/// Returns the product of the sizes, which must be valid (fits); does not check for overflow.
[[nodiscard]] std::int64_t num_elements(std::span<const std::int64_t> sizes);

/// Returns whether the box has the shape's dims and lies within it.
[[nodiscard]] bool fits(const Box& box, std::span<const std::int64_t> shape);

/// Splits values [begin, end) of a tensor, in row-major order, into boxes: one box if the range
/// consists of whole rows, otherwise up to 2 * dims - 1.
[[nodiscard]] std::vector<Box> boxes_of_run(std::span<const std::int64_t> shape, std::int64_t begin,
                                            std::int64_t end);

/// Returns whether two boxes of one tensor share no element.
[[nodiscard]] bool are_disjoint(const Box& a, const Box& b);

/// A run of `count` elements that is contiguous in both boxes. Units: elements.
struct CommonRun {
  std::int64_t in_a = 0;  ///< offset in a's values
  std::int64_t in_b = 0;
  std::int64_t count = 0;

  bool operator==(const CommonRun&) const = default;
};

/// Returns the elements that two boxes of one tensor share, as maximal runs in row-major order.
[[nodiscard]] std::vector<CommonRun> common_runs(const Box& a, const Box& b);

}  // namespace dtrain::checkpoint::format
