#include "dtrain/checkpoint/format/box.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>

namespace dtrain::checkpoint::format {
namespace {

std::optional<Box> intersection(const Box& a, const Box& b) {
  Box result;
  for (std::size_t dim = 0; dim < a.sizes.size(); ++dim) {
    const std::int64_t begin = std::max(a.offsets[dim], b.offsets[dim]);
    const std::int64_t end = std::min(a.offsets[dim] + a.sizes[dim], b.offsets[dim] + b.sizes[dim]);
    if (begin >= end) return std::nullopt;
    result.offsets.push_back(begin);
    result.sizes.push_back(end - begin);
  }
  return result;
}

// Returns the offset in the box's values of the element at `position` of the whole tensor.
std::int64_t index_in(const Box& box, const std::vector<std::int64_t>& position) {
  std::int64_t index = 0;
  for (std::size_t dim = 0; dim < box.sizes.size(); ++dim) {
    index = index * box.sizes[dim] + position[dim] - box.offsets[dim];
  }
  return index;
}

// Returns the first dim that a contiguous run covers: both boxes are whole in all dims after it.
std::size_t first_run_dim(const Box& common, const Box& a, const Box& b) {
  std::size_t dim = common.sizes.size();
  while (dim > 0) {
    --dim;
    if (common.sizes[dim] != a.sizes[dim] || common.sizes[dim] != b.sizes[dim]) break;
  }
  return dim;
}

// Prepends a dim to `within`: `count` rows from `first`.
Box of_rows(std::int64_t first, std::int64_t count, const Box& within) {
  Box box{.offsets = {first}, .sizes = {count}};
  box.offsets.insert(box.offsets.end(), within.offsets.begin(), within.offsets.end());
  box.sizes.insert(box.sizes.end(), within.sizes.begin(), within.sizes.end());
  return box;
}

// Advances to the next position in row-major order over the dims before `end`; false after the
// last.
bool advance(std::vector<std::int64_t>& position, const Box& box, std::size_t end) {
  for (std::size_t dim = end; dim-- > 0;) {
    if (++position[dim] < box.offsets[dim] + box.sizes[dim]) return true;
    position[dim] = box.offsets[dim];
  }
  return false;
}

}  // namespace

Box whole(std::span<const std::int64_t> shape) {
  return {.offsets = std::vector<std::int64_t>(shape.size(), 0),
          .sizes = {shape.begin(), shape.end()}};
}

std::int64_t num_elements(std::span<const std::int64_t> sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
}

bool fits(const Box& box, std::span<const std::int64_t> shape) {
  if (box.offsets.size() != shape.size() || box.sizes.size() != shape.size()) return false;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    const std::int64_t offset = box.offsets[dim];
    const std::int64_t size = box.sizes[dim];
    if (offset < 0 || size < 0 || offset > shape[dim] || size > shape[dim] - offset) return false;
  }
  return true;
}

std::vector<Box> boxes_of_run(std::span<const std::int64_t> shape, std::int64_t begin,
                              std::int64_t end) {
  if (begin >= end) return {};
  if (shape.empty()) return {Box{}};
  const auto rest = shape.subspan(1);
  const std::int64_t row = num_elements(rest);
  std::vector<Box> boxes;
  const auto add_part_of_row = [&](std::int64_t from, std::int64_t to) {
    const std::int64_t start = from / row * row;
    for (const Box& part : boxes_of_run(rest, from - start, to - start)) {
      boxes.push_back(of_rows(from / row, 1, part));
    }
  };
  const std::int64_t first_whole = (begin + row - 1) / row;
  const std::int64_t end_whole = end / row;
  if (first_whole > end_whole) {  // within one row
    add_part_of_row(begin, end);
    return boxes;
  }
  if (begin < first_whole * row) add_part_of_row(begin, first_whole * row);
  if (first_whole < end_whole) {
    boxes.push_back(of_rows(first_whole, end_whole - first_whole, whole(rest)));
  }
  if (end_whole * row < end) add_part_of_row(end_whole * row, end);
  return boxes;
}

bool are_disjoint(const Box& a, const Box& b) { return !intersection(a, b).has_value(); }

std::vector<CommonRun> common_runs(const Box& a, const Box& b) {
  const std::optional<Box> common = intersection(a, b);
  if (!common) return {};
  const std::size_t run_dim = first_run_dim(*common, a, b);
  const std::int64_t count =
      num_elements(std::span(common->sizes).subspan(std::min(run_dim, common->sizes.size())));
  std::vector<CommonRun> runs;
  std::vector<std::int64_t> position = common->offsets;
  do {
    runs.push_back({.in_a = index_in(a, position), .in_b = index_in(b, position), .count = count});
  } while (advance(position, *common, run_dim));
  return runs;
}

}  // namespace dtrain::checkpoint::format
