#include "dtrain/checkpoint/format/slabs.h"

#include <algorithm>

namespace dtrain::checkpoint::format {

std::vector<Box> slabs(std::span<const std::int64_t> shape, std::int64_t max_elements) {
  if (num_elements(shape) == 0) return {};
  if (num_elements(shape) <= max_elements) return {whole(shape)};
  // Cut the first dim, and where one of its rows is still too large, that row.
  const std::int64_t row = num_elements(shape.subspan(1));
  const std::int64_t rows = std::max<std::int64_t>(1, max_elements / row);
  const std::vector<Box> within_row = row > max_elements ? slabs(shape.subspan(1), max_elements)
                                                         : std::vector{whole(shape.subspan(1))};
  std::vector<Box> result;
  for (std::int64_t first = 0; first < shape[0]; first += rows) {
    for (const Box& part : within_row) {
      Box box{.offsets = {first}, .sizes = {std::min(rows, shape[0] - first)}};
      box.offsets.insert(box.offsets.end(), part.offsets.begin(), part.offsets.end());
      box.sizes.insert(box.sizes.end(), part.sizes.begin(), part.sizes.end());
      result.push_back(std::move(box));
    }
  }
  return result;
}

}  // namespace dtrain::checkpoint::format
