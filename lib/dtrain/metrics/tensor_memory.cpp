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

constexpr std::size_t kKeepFrom = std::size_t{1} << 20;

// The header before the data: whoever frees memory gives its address alone. oneDNN takes memory
// through Allocator::raw_allocate, which keeps neither a context nor the size.
struct alignas(c10::gAlignment) Header {
  std::size_t bytes;  // of the data
};

class CountingAllocator final : public c10::Allocator {
 public:
  // The context is the data itself, as raw_allocate demands.
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

  MemoryUse use() {
    const std::lock_guard lock(mutex_);
    return {current_.load(), peak_.load(), kept_bytes_};
  }

  void begin_step(std::int64_t step) {
    const std::lock_guard lock(mutex_);
    if (step <= step_) return;
    for (auto size = sizes_.begin(); size != sizes_.end();) {
      auto& [bytes, blocks] = *size;
      while (blocks.used + std::ssize(blocks.kept) > blocks.most_used && !blocks.kept.empty()) {
        free_one(bytes, blocks);
      }
      blocks.most_used = blocks.used;
      const bool is_gone = blocks.used == 0 && blocks.kept.empty();
      size = is_gone ? sizes_.erase(size) : std::next(size);
    }
    step_ = step;
    is_in_step_ = true;
  }

  void end_step(std::int64_t step) {
    const std::lock_guard lock(mutex_);
    if (step != step_ || !is_in_step_) return;
    is_in_step_ = false;
    most_bytes_ = used_bytes_ + kept_bytes_;
  }

  void restart_peak() { peak_.store(current_.load()); }

  static CountingAllocator& instance() {
    // Never destroyed, because tensors of static storage may be freed after any static of ours.
    static auto* allocator = new CountingAllocator();
    return *allocator;
  }

 private:
  // Of one size.
  struct Blocks {
    std::vector<Header*> kept;
    std::int64_t used = 0;       // now
    std::int64_t most_used = 0;  // at once, since the last step began and until it ended
  };

  void* obtain(std::size_t bytes) {
    if (bytes >= kKeepFrom) {
      if (void* kept = take_kept(bytes)) return kept;
    }
    try {
      return allocate_new(bytes);
    } catch (const c10::Error&) {
      const std::lock_guard lock(mutex_);
      free_kept(0);
    }
    try {
      return allocate_or_fail(bytes);
    } catch (...) {
      if (bytes >= kKeepFrom) forget(bytes);
      throw;
    }
  }

  // A request that failed uses nothing.
  void forget(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    --sizes_[bytes].used;
    used_bytes_ -= static_cast<std::int64_t>(bytes);
  }

  // A block of this size; null if there is none, and then there is room for a new one.
  void* take_kept(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    Blocks& blocks = sizes_[bytes];
    ++blocks.used;
    if (is_in_step_) blocks.most_used = std::max(blocks.most_used, blocks.used);
    used_bytes_ += static_cast<std::int64_t>(bytes);
    if (blocks.kept.empty()) {
      keep_bound();
      return nullptr;
    }
    Header* header = blocks.kept.back();
    blocks.kept.pop_back();
    kept_bytes_ -= static_cast<std::int64_t>(bytes);
    return header + 1;
  }

  static void* allocate_new(std::size_t bytes) {
    return new (c10::alloc_cpu(sizeof(Header) + bytes)) Header{bytes} + 1;
  }

  // The last try, when nothing is left to give back.
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

  void free_one(std::size_t bytes, Blocks& blocks) {
    c10::free_cpu(blocks.kept.back());
    blocks.kept.pop_back();
    kept_bytes_ -= static_cast<std::int64_t>(bytes);
  }

  // Frees kept blocks until they take no more than `bytes`, with as little as possible beyond that:
  // the smallest one that suffices, else the largest.
  void free_kept(std::int64_t bytes) {
    const auto is_kept = [](const auto& size) { return !size.second.kept.empty(); };
    while (kept_bytes_ > std::max<std::int64_t>(0, bytes)) {
      const auto enough = sizes_.lower_bound(static_cast<std::size_t>(kept_bytes_ - bytes));
      auto found = std::find_if(enough, sizes_.end(), is_kept);
      if (found == sizes_.end()) {
        found = std::prev(std::find_if(sizes_.rbegin(), sizes_.rend(), is_kept).base());
      }
      free_one(found->first, found->second);
    }
  }

  void keep_bound() {
    if (!is_in_step_) free_kept(most_bytes_ - used_bytes_);
  }

  void give_back(Header* header) {
    const auto bytes = static_cast<std::int64_t>(header->bytes);
    count(-bytes);
    if (header->bytes < kKeepFrom) {
      c10::free_cpu(header);
      return;
    }
    const std::lock_guard lock(mutex_);
    if (step_ == 0) most_bytes_ = std::max(most_bytes_, used_bytes_);
    Blocks& blocks = sizes_[header->bytes];
    blocks.kept.push_back(header);
    --blocks.used;
    used_bytes_ -= bytes;
    kept_bytes_ += bytes;
    keep_bound();
  }

  static void release(void* data) {
    if (data != nullptr) instance().give_back(static_cast<Header*>(data) - 1);
  }

  std::mutex mutex_;                     // guards all but the counters below
  std::map<std::size_t, Blocks> sizes_;  // by bytes of a block, kKeepFrom or more
  std::int64_t used_bytes_ = 0;          // of blocks of these sizes
  std::int64_t kept_bytes_ = 0;
  std::int64_t most_bytes_ = 0;  // used and kept between steps; before the first one, used at once
  std::int64_t step_ = 0;
  bool is_in_step_ = false;
  std::atomic<std::int64_t> current_{0};
  std::atomic<std::int64_t> peak_{0};
};

}  // namespace

void install_counting_allocator() {
  c10::SetCPUAllocator(&CountingAllocator::instance(), /*priority=*/1);
}

void count_other_memory(std::int64_t bytes) { CountingAllocator::instance().count(bytes); }

void begin_step(std::int64_t step) { CountingAllocator::instance().begin_step(step); }

void end_step(std::int64_t step) { CountingAllocator::instance().end_step(step); }

MemoryUse memory_use(c10::Device device) {
  if (device.is_cpu()) return CountingAllocator::instance().use();
  const auto bytes = c10::getDeviceAllocator(device.type())
                         ->getDeviceStats(device.index())
                         .allocated_bytes[0];  // in pools of every kind
  return {.current = bytes.current, .peak = bytes.peak};
}

void restart_peak(c10::Device device) {
  if (device.is_cpu()) return CountingAllocator::instance().restart_peak();
  c10::getDeviceAllocator(device.type())->resetPeakStats(device.index());
}

}  // namespace dtrain::metrics
