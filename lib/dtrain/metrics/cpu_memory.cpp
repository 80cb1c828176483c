#include "dtrain/metrics/cpu_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/alignment.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <new>
#include <unordered_map>
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

  MemoryUse use() const { return {current_.load(), peak_.load()}; }

  void restart_peak() { peak_.store(current_.load()); }

  static CountingAllocator& instance() {
    // Never destroyed, because tensors of static storage may be freed after any static of ours.
    static auto* allocator = new CountingAllocator();
    return *allocator;
  }

 private:
  void* obtain(std::size_t bytes) {
    if (bytes >= kKeepFrom) {
      const std::lock_guard lock(mutex_);
      auto& kept = kept_[bytes];
      if (!kept.empty()) {
        Header* header = kept.back();
        kept.pop_back();
        return header + 1;
      }
    }
    try {
      return allocate_new(bytes);
    } catch (const c10::Error&) {
      free_kept();
    }
    return allocate_or_fail(bytes);
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

  void free_kept() {
    const std::lock_guard lock(mutex_);
    for (const auto& [size, blocks] : kept_) {
      for (Header* header : blocks) c10::free_cpu(header);
    }
    kept_.clear();
  }

  void give_back(Header* header) {
    count(-static_cast<std::int64_t>(header->bytes));
    if (header->bytes < kKeepFrom) {
      c10::free_cpu(header);
      return;
    }
    const std::lock_guard lock(mutex_);
    kept_[header->bytes].push_back(header);
  }

  static void release(void* data) {
    if (data != nullptr) instance().give_back(static_cast<Header*>(data) - 1);
  }

  std::mutex mutex_;
  std::unordered_map<std::size_t, std::vector<Header*>> kept_;  // by size in bytes
  std::atomic<std::int64_t> current_{0};
  std::atomic<std::int64_t> peak_{0};
};

}  // namespace

void install_counting_allocator() {
  c10::SetCPUAllocator(&CountingAllocator::instance(), /*priority=*/1);
}

void count_other_memory(std::int64_t bytes) { CountingAllocator::instance().count(bytes); }

void restart_peak() { CountingAllocator::instance().restart_peak(); }

MemoryUse memory_use() { return CountingAllocator::instance().use(); }

}  // namespace dtrain::metrics
