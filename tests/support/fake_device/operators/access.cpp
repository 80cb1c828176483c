#include "support/fake_device/operators/access.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

namespace dtrain::testing::fake {

namespace {

constexpr std::size_t kMostRanges = 4096;  // beyond it, a tensor counts as one contiguous range

struct Dimension {
  std::size_t stride = 0;  // bytes
  std::size_t size = 0;

  [[nodiscard]] std::size_t reach() const { return stride * (size - 1); }
};

// Innermost first, without dimensions of size 1 or stride 0.
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

namespace {

struct GuardedCopy {
  std::weak_ptr<Block> block;
  Range range;
  Epoch copy;
  int rights = PROT_NONE;
};

struct Guards {
  std::mutex mutex;
  std::vector<GuardedCopy> all;
};

Guards& guards() {
  static auto* const made = new Guards;
  return *made;
}

// Applies the strictest guard of each page last.
void apply(const std::vector<GuardedCopy>& all) {
  for (const int rights : {PROT_READ, PROT_NONE}) {
    for (const GuardedCopy& guard : all) {
      const BlockPtr block = guard.block.lock();
      if (block && guard.rights == rights) memory().protect(*block, guard.range, rights);
    }
  }
}

class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device host(c10::kCPU);
    if (bytes == 0) return {nullptr, host};
    BlockPtr block = memory().allocate(bytes, Place::pinned, 0);
    void* const data = memory().for_host(*block);
    return {data, new BlockPtr(std::move(block)), &give_back, host};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }

 private:
  static void give_back(void* context) {
    const std::unique_ptr<BlockPtr> held(static_cast<BlockPtr*>(context));
    const std::lock_guard lock(guards().mutex);
    std::erase_if(guards().all, [&](const GuardedCopy& g) { return g.block.lock() == *held; });
    memory().forget(**held);
  }
};

}  // namespace

c10::Allocator& pinned_allocator() {
  static auto* const made = new PinnedAllocator;
  return *made;
}

void guard_copy(const Access& access, const Epoch& copy) {
  const std::lock_guard lock(guards().mutex);
  const int rights = access.is_write ? PROT_NONE : PROT_READ;
  for (const Range& range : access.ranges) {
    guards().all.push_back({.block = access.block, .range = range, .copy = copy, .rights = rights});
  }
  apply(guards().all);
}

void release_copies(const Clock& known) {
  const std::lock_guard lock(guards().mutex);
  std::vector<GuardedCopy>& all = guards().all;
  const auto is_over = [&](const GuardedCopy& guard) { return guard.copy.is_before(known); };
  for (const GuardedCopy& guard : all) {
    const BlockPtr block = guard.block.lock();
    if (block && is_over(guard)) memory().protect(*block, guard.range, PROT_READ | PROT_WRITE);
  }
  std::erase_if(all, is_over);
  apply(all);
}

}  // namespace dtrain::testing::fake
