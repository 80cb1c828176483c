#include "support/fake_device/access.h"

#include <algorithm>
#include <utility>

namespace dtrain::testing::fake {
namespace {

constexpr std::size_t kMostRanges = 4096;  // beyond, a tensor counts as all bytes between its ends

struct Dimension {
  std::size_t stride = 0;  // bytes
  std::size_t size = 0;

  [[nodiscard]] std::size_t reach() const { return stride * (size - 1); }
};

// Innermost first; without those that do not move.
std::vector<Dimension> dimensions_of(const at::Tensor& tensor) {
  std::vector<Dimension> dimensions;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) == 1 || tensor.stride(d) == 0) continue;
    dimensions.push_back({.stride = static_cast<std::size_t>(tensor.stride(d)) * tensor.itemsize(),
                          .size = static_cast<std::size_t>(tensor.size(d))});
  }
  std::ranges::sort(dimensions, {}, &Dimension::stride);
  return dimensions;
}

void repeat(std::vector<Range>& ranges, const Dimension& dimension) {
  if (ranges.size() * dimension.size > kMostRanges) {
    ranges = {{ranges.front().begin, ranges.back().end + dimension.reach()}};
    return;
  }
  const std::vector<Range> once = ranges;
  for (std::size_t i = 1; i < dimension.size; ++i) {
    const std::size_t shift = i * dimension.stride;
    for (const Range& r : once) ranges.push_back({r.begin + shift, r.end + shift});
  }
}

std::vector<Range> ranges_of(const at::Tensor& tensor, std::size_t first) {
  if (tensor.numel() == 0) return {};
  std::vector<Range> ranges{{first, first + tensor.itemsize()}};
  for (const Dimension& dimension : dimensions_of(tensor)) {
    Range& run = ranges.front();
    if (ranges.size() == 1 && dimension.stride <= run.end - run.begin) {
      run.end += dimension.reach();
    } else {
      repeat(ranges, dimension);
    }
  }
  return ranges;
}

}  // namespace

Access access_of(const at::Tensor& tensor, bool is_write) {
  const void* const start = tensor.storage().data();
  BlockPtr block = memory().find(start);
  TORCH_CHECK(block || tensor.numel() == 0, "a tensor of freed or foreign device memory");
  if (!block) return {};
  const std::size_t first = memory().offset_in(*block, start) +
                            static_cast<std::size_t>(tensor.storage_offset()) * tensor.itemsize();
  return {.block = std::move(block), .ranges = ranges_of(tensor, first), .is_write = is_write};
}

std::optional<std::string> find_race(const std::vector<Access>& accesses, const Epoch& kernel,
                                     const Clock& known) {
  std::optional<std::string> race;
  for (const Access& access : accesses) {
    if (!access.block) continue;
    const std::lock_guard lock(access.block->mutex);
    const Use use{kernel, access.is_write};
    const std::optional<Conflict> conflict = access.block->history.add(access.ranges, use, known);
    if (!conflict || race) continue;
    race = c10::str("race on bytes ", conflict->range.begin, " to ", conflict->range.end, " of ",
                    access.block->describe(), ": ", describe(kernel, access.is_write), ", but ",
                    describe(conflict->before, conflict->was_write), " and no event orders them");
  }
  return race;
}

std::string describe(const Epoch& kernel, bool is_write) {
  return c10::str(kernel.name, " (kernel ", kernel.tick, " of stream ", kernel.stream, ") ",
                  is_write ? "writes" : "reads");
}

}  // namespace dtrain::testing::fake
