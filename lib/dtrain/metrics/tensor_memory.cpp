#include "dtrain/metrics/tensor_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/alignment.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <vector>

#include "dtrain/base/error.h"

namespace dtrain::metrics {
namespace {

constexpr std::size_t kMinCachedBytes = std::size_t{1} << 20;

// Precedes the data, since memory is freed by its address alone: oneDNN allocates with
// Allocator::raw_allocate, which keeps neither a context nor the size.
struct alignas(c10::gAlignment) Header {
  std::size_t bytes;  // of the data
};

// Caches freed blocks of kMinCachedBytes and more, by size. install_counting_allocator() documents
// its bounds.
//
// Threads: all members from any thread.
class BlockCache {
 public:
  // Counts a block in use; returns a cached one of this size, or null after making room for a new one.
  void* take(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    Blocks& blocks = sizes_[bytes];
    ++blocks.used;
    if (is_in_step_) blocks.most_used = std::max(blocks.most_used, blocks.used);
    used_bytes_ += static_cast<std::int64_t>(bytes);
    if (blocks.cached.empty()) {
      apply_bound();
      return nullptr;
    }
    Header* header = blocks.cached.back();
    blocks.cached.pop_back();
    cached_bytes_ -= static_cast<std::int64_t>(bytes);
    return header + 1;
  }

  // Undoes take() after a failed allocation.
  void cancel(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    --sizes_[bytes].used;
    used_bytes_ -= static_cast<std::int64_t>(bytes);
  }

  // Takes a block that is no longer in use.
  void put(Header* header) {
    const auto bytes = static_cast<std::int64_t>(header->bytes);
    const std::lock_guard lock(mutex_);
    if (step_ == 0) max_bytes_ = std::max(max_bytes_, used_bytes_);
    Blocks& blocks = sizes_[header->bytes];
    blocks.cached.push_back(header);
    --blocks.used;
    used_bytes_ -= bytes;
    cached_bytes_ += bytes;
    apply_bound();
  }

  void clear() {
    const std::lock_guard lock(mutex_);
    shrink_to(0);
  }

  std::int64_t bytes() {
    const std::lock_guard lock(mutex_);
    return cached_bytes_;
  }

  void begin_step(std::int64_t step) {
    const std::lock_guard lock(mutex_);
    if (step <= step_) return;
    for (auto size = sizes_.begin(); size != sizes_.end();) {
      auto& [bytes, blocks] = *size;
      while (blocks.used + std::ssize(blocks.cached) > blocks.most_used && !blocks.cached.empty()) {
        free_one(bytes, blocks);
      }
      blocks.most_used = blocks.used;
      const bool is_unused = blocks.used == 0 && blocks.cached.empty();
      size = is_unused ? sizes_.erase(size) : std::next(size);
    }
    step_ = step;
    is_in_step_ = true;
  }

  void end_step(std::int64_t step) {
    const std::lock_guard lock(mutex_);
    if (step != step_ || !is_in_step_) return;
    is_in_step_ = false;
    max_bytes_ = used_bytes_ + cached_bytes_;
  }

 private:
  // The blocks of one size.
  struct Blocks {
    std::vector<Header*> cached;
    std::int64_t used = 0;       // now
    std::int64_t most_used = 0;  // at once, from the start of the last step to its end
  };

  void free_one(std::size_t bytes, Blocks& blocks) {
    c10::free_cpu(blocks.cached.back());
    blocks.cached.pop_back();
    cached_bytes_ -= static_cast<std::int64_t>(bytes);
  }

  // Frees cached blocks until they take at most `bytes`. Frees as little as possible beyond that: the
  // smallest block that suffices, else the largest.
  void shrink_to(std::int64_t bytes) {
    const auto is_cached = [](const auto& size) { return !size.second.cached.empty(); };
    while (cached_bytes_ > std::max<std::int64_t>(0, bytes)) {
      const auto enough = sizes_.lower_bound(static_cast<std::size_t>(cached_bytes_ - bytes));
      auto found = std::find_if(enough, sizes_.end(), is_cached);
      if (found == sizes_.end()) {
        found = std::prev(std::find_if(sizes_.rbegin(), sizes_.rend(), is_cached).base());
      }
      free_one(found->first, found->second);
    }
  }

  void apply_bound() {
    if (!is_in_step_) shrink_to(max_bytes_ - used_bytes_);
  }

  std::mutex mutex_;                     // guards all members
  std::map<std::size_t, Blocks> sizes_;  // by bytes of a block
  std::int64_t used_bytes_ = 0;          // of blocks of these sizes
  std::int64_t cached_bytes_ = 0;
  std::int64_t max_bytes_ = 0;  // used and cached between steps; before the first step, peak use
  std::int64_t step_ = 0;
  bool is_in_step_ = false;
};

class CountingAllocator final : public c10::Allocator {
 public:
  // The context is the data itself, as raw_allocate requires.
  c10::DataPtr allocate(std::size_t bytes) override {
    void* data = bytes == 0 ? nullptr : obtain(bytes);
    count(static_cast<std::int64_t>(bytes));
    return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* destination, const void* source, std::size_t bytes) const override {
    std::memcpy(destination, source, bytes);
  }

  void count(std::int64_t bytes) {
    const std::int64_t now = current_.fetch_add(bytes) + bytes;
    std::int64_t seen = peak_.load();
    while (now > seen && !peak_.compare_exchange_weak(seen, now)) {
    }
  }

  MemoryUse use() { return {current_.load(), peak_.load(), cache_.bytes()}; }
  void restart_peak() { peak_.store(current_.load()); }
  BlockCache& cache() { return cache_; }

  static CountingAllocator& instance() {
    // Never destroyed, because static tensors may be freed after our own statics.
    static auto* allocator = new CountingAllocator();
    return *allocator;
  }

 private:
  void* obtain(std::size_t bytes) {
    const bool is_large = bytes >= kMinCachedBytes;
    if (is_large) {
      if (void* cached = cache_.take(bytes)) return cached;
    }
    try {
      return allocate_new(bytes);
    } catch (const c10::Error&) {
      cache_.clear();
    }
    try {
      return allocate_or_fail(bytes);
    } catch (...) {
      if (is_large) cache_.cancel(bytes);
      throw;
    }
  }

  static void* allocate_new(std::size_t bytes) {
    return new (c10::alloc_cpu(sizeof(Header) + bytes)) Header{bytes} + 1;
  }

  // The last attempt, with an empty cache.
  void* allocate_or_fail(std::size_t bytes) const {
    try {
      return allocate_new(bytes);
    } catch (const c10::Error&) {
      base::fail(base::ErrorKind::memory,
                 "out of memory: {} bytes for a tensor, with {} in use; use --recompute level, a "
                 "smaller --microbatch (more --grad-accum makes up for it), --seq-len or model",
                 bytes, current_.load());
    }
  }

  void free(Header* header) {
    count(-static_cast<std::int64_t>(header->bytes));
    if (header->bytes < kMinCachedBytes) {
      c10::free_cpu(header);
    } else {
      cache_.put(header);
    }
  }

  static void release(void* data) {
    if (data != nullptr) instance().free(static_cast<Header*>(data) - 1);
  }

  BlockCache cache_;
  std::atomic<std::int64_t> current_{0};
  std::atomic<std::int64_t> peak_{0};
};

}  // namespace

void install_counting_allocator() {
  c10::SetCPUAllocator(&CountingAllocator::instance(), /*priority=*/1);
}

void count_other_memory(std::int64_t bytes) { CountingAllocator::instance().count(bytes); }

void begin_step(std::int64_t step) { CountingAllocator::instance().cache().begin_step(step); }

void end_step(std::int64_t step) { CountingAllocator::instance().cache().end_step(step); }

MemoryUse memory_use(c10::Device device) {
  if (device.is_cpu()) return CountingAllocator::instance().use();
  const auto bytes = c10::getDeviceAllocator(device.type())
                         ->getDeviceStats(device.index())
                         .allocated_bytes[0];  // 0: all pools
  return {.current = bytes.current, .peak = bytes.peak};
}

void restart_peak(c10::Device device) {
  if (device.is_cpu()) return CountingAllocator::instance().restart_peak();
  c10::getDeviceAllocator(device.type())->resetPeakStats(device.index());
}

}  // namespace dtrain::metrics
