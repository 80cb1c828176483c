#include "dtrain/checkpoint/format/box.h"

#include <catch2/catch.hpp>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <vector>

namespace dtrain::checkpoint::format::box_test {
namespace {

using Position = std::vector<std::int64_t>;
using Shape = std::vector<std::int64_t>;

/// The positions of a box's values in the whole tensor, in row-major order.
std::vector<Position> positions_of(const Box& box) {
  std::vector<Position> result;
  for (const std::int64_t size : box.sizes) {
    if (size == 0) return result;
  }
  Position at(box.sizes.size(), 0);
  for (;;) {
    Position position;
    for (std::size_t dim = 0; dim < at.size(); ++dim) {
      position.push_back(box.offsets[dim] + at[dim]);
    }
    result.push_back(position);
    std::size_t dim = at.size();
    while (dim > 0 && ++at[dim - 1] == box.sizes[dim - 1]) at[--dim] = 0;
    if (dim == 0) return result;
  }
}

/// The indices in a and in b of each common element, in a's order.
std::vector<std::pair<std::int64_t, std::int64_t>> common_elements(const Box& a, const Box& b) {
  std::map<Position, std::int64_t> in_b;
  for (const Position& position : positions_of(b)) in_b.emplace(position, std::ssize(in_b));
  std::vector<std::pair<std::int64_t, std::int64_t>> result;
  std::int64_t index = 0;
  for (const Position& position : positions_of(a)) {
    if (const auto found = in_b.find(position); found != in_b.end()) {
      result.emplace_back(index, found->second);
    }
    ++index;
  }
  return result;
}

Box random_box(std::mt19937_64& random, const std::vector<std::int64_t>& shape) {
  Box box;
  for (const std::int64_t size : shape) {
    // Often covers a whole dim, as sharding does.
    const bool is_whole = random() % 3 == 0;
    const auto choices = static_cast<std::uint64_t>(size) + 1;
    const auto x = static_cast<std::int64_t>(random() % choices);
    const auto y = static_cast<std::int64_t>(random() % choices);
    box.offsets.push_back(is_whole ? 0 : std::min(x, y));
    box.sizes.push_back(is_whole ? size : std::abs(x - y));
  }
  return box;
}

TEST_CASE("Common runs are the shared elements of two boxes, in maximal runs") {
  std::mt19937_64 random(4);
  int shared = 0;
  for (int round = 0; round < 5000; ++round) {
    std::vector<std::int64_t> shape(random() % 4);
    for (std::int64_t& size : shape) size = static_cast<std::int64_t>(random() % 6);
    const Box a = random_box(random, shape);
    const Box b = random_box(random, shape);
    CAPTURE(shape, a.offsets, a.sizes, b.offsets, b.sizes);
    const auto expected = common_elements(a, b);
    std::vector<std::pair<std::int64_t, std::int64_t>> found;
    CommonRun last;
    for (const CommonRun& run : common_runs(a, b)) {
      CHECK(run.count > 0);
      const bool goes_on = last.count > 0 && last.in_a + last.count == run.in_a &&
                           last.in_b + last.count == run.in_b;
      CHECK_FALSE(goes_on);
      for (std::int64_t i = 0; i < run.count; ++i) found.emplace_back(run.in_a + i, run.in_b + i);
      last = run;
    }
    CHECK(found == expected);
    CHECK(are_disjoint(a, b) == expected.empty());
    CHECK(num_elements(a.sizes) == std::ssize(positions_of(a)));
    shared += expected.empty() ? 0 : 1;
  }
  CHECK(shared > 1000);
}

// For every run in every shape of up to three dims of size up to four, the boxes' concatenated
// values equal the run.
TEST_CASE("A run is split into few boxes, in order") {
  std::vector<std::vector<std::int64_t>> shapes{{}};
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    if (shapes[i].size() == 3) break;
    for (std::int64_t size = 1; size <= 4; ++size) {
      shapes.push_back(shapes[i]);
      shapes.back().push_back(size);
    }
  }
  REQUIRE(shapes.size() == 1 + 4 + 16 + 64);
  for (const std::vector<std::int64_t>& shape : shapes) {
    const std::vector<Position> all = positions_of(whole(shape));
    const auto count = std::ssize(all);
    REQUIRE(count == num_elements(shape));
    for (std::int64_t begin = 0; begin < count; ++begin) {
      for (std::int64_t end = begin + 1; end <= count; ++end) {
        CAPTURE(shape, begin, end);
        const std::vector<Box> boxes = boxes_of_run(shape, begin, end);
        std::vector<Position> found;
        for (const Box& box : boxes) {
          CHECK(fits(box, shape));
          const std::vector<Position> positions = positions_of(box);
          found.insert(found.end(), positions.begin(), positions.end());
        }
        CHECK(found == std::vector<Position>(all.begin() + begin, all.begin() + end));
        CHECK(std::ssize(boxes) <= std::max<std::int64_t>(2 * std::ssize(shape) - 1, 1));
        const std::int64_t row = shape.empty() ? 1 : count / shape[0];
        if (begin % row == 0 && end % row == 0) CHECK(boxes.size() == 1);
      }
    }
  }
}

TEST_CASE("fits() is correct for any numbers") {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  const std::vector<std::int64_t> shape{4, 3};
  CHECK(fits(whole(shape), shape));
  CHECK(fits({.offsets = {4, 0}, .sizes = {0, 3}}, shape));
  CHECK(fits({}, {}));
  CHECK_FALSE(fits({.offsets = {1, 0}, .sizes = {4, 3}}, shape));
  CHECK_FALSE(fits({.offsets = {-1, 0}, .sizes = {2, 3}}, shape));
  CHECK_FALSE(fits({.offsets = {0, 0}, .sizes = {-1, 3}}, shape));
  CHECK_FALSE(fits({.offsets = {0}, .sizes = {4}}, shape));
  CHECK_FALSE(fits({.offsets = {0, 0}, .sizes = {4}}, shape));
  CHECK_FALSE(fits({.offsets = {kMax, 0}, .sizes = {kMax, 1}}, shape));
  CHECK_FALSE(fits({.offsets = {2, 0}, .sizes = {kMax, 1}}, shape));
}

}  // namespace
}  // namespace dtrain::checkpoint::format::box_test
