#include <catch2/catch.hpp>
#include <cstdint>
#include <vector>

#include "dtrain/checkpoint/format/box.h"

namespace dtrain::checkpoint::format::slabs_test {
namespace {

using Shape = std::vector<std::int64_t>;

/// The row-major numbers of a box's elements, by counting through the whole tensor.
std::vector<std::int64_t> elements_in(const Box& box, const Shape& shape) {
  std::vector<std::int64_t> found;
  for (std::int64_t element = 0; element < num_elements(shape); ++element) {
    std::int64_t rest = element;
    bool is_in = true;
    for (std::size_t dim = shape.size(); dim-- > 0; rest /= shape[dim]) {
      const std::int64_t at = rest % shape[dim] - box.offsets[dim];
      is_in = is_in && at >= 0 && at < box.sizes[dim];
    }
    if (is_in) found.push_back(element);
  }
  return found;
}

TEST_CASE("Slabs cover a tensor in order and are never larger than asked") {
  for (const Shape& shape : {Shape{}, {1}, {7}, {3, 5}, {2, 3, 4}, {4, 1, 6}, {1, 1, 9}}) {
    for (const std::int64_t most : {1, 2, 3, 4, 5, 6, 12, 100}) {
      std::vector<std::int64_t> all;
      for (const Box& box : slabs(shape, most)) {
        REQUIRE(fits(box, shape));
        const auto elements = elements_in(box, shape);
        CHECK(std::ssize(elements) <= most);
        all.insert(all.end(), elements.begin(), elements.end());
      }
      INFO(most << " elements of " << num_elements(shape) << " in " << shape.size() << " dims");
      CHECK(all == elements_in(whole(shape), shape));
    }
  }
}

TEST_CASE("A tensor that fits is one slab, and one without elements none") {
  CHECK(slabs(Shape{3, 5}, 15) == std::vector<Box>{{{0, 0}, {3, 5}}});
  CHECK(slabs(Shape{3, 5}, 11) == std::vector<Box>{{{0, 0}, {2, 5}}, {{2, 0}, {1, 5}}});
  CHECK(slabs(Shape{}, 8) == std::vector<Box>{Box{}});
  CHECK(slabs(Shape{3, 0}, 8).empty());
}

}  // namespace
}  // namespace dtrain::checkpoint::format::slabs_test
