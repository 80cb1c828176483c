#include "support/fake_device/device_memory.h"

#include <ATen/EmptyTensor.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "support/fake_device/faults.h"
#include "support/fake_device/graph.h"
#include "support/fake_device/operators/launched_kernel.h"
#include "support/fake_device/streams.h"

namespace dtrain::testing::fake {
namespace {

// Checks a free as a caching allocator requires it: the memory may go to the owner stream's next kernel.
void check_freed(Block& block, StreamNumber owner) {
  Clock known = streams().launched(owner);
  known.join(streams().known_to_host());
  const std::lock_guard lock(block.mutex);
  const std::vector<StreamNumber> excused(block.streams.begin(), block.streams.end());
  const auto use = block.history.unordered(known, excused);
  if (!use) return;
  streams().report_race(c10::str(block.describe(), " of stream ", owner, " is freed, but ",
                                 describe(use->before, use->was_write),
                                 " it, and neither an event nor record_stream orders them"));
}

// Memory that was freed while another stream might still use it. It is not reused before that stream
// has passed its uses, which a caching allocator checks at the next allocation.
class Parked {
 public:
  void add(c10::DeviceIndex device, std::size_t bytes, Clock until) {
    const std::lock_guard lock(mutex_);
    all_.push_back({device, bytes, std::move(until)});
  }
  void release() {
    const std::lock_guard lock(mutex_);
    std::erase_if(all_, [](const Freed& freed) {
      if (!streams().has_run(freed.until)) return false;
      change_counters(freed.device, [&](Counters& all) { all.bytes -= freed.bytes; });
      return true;
    });
  }

 private:
  struct Freed {
    c10::DeviceIndex device = 0;
    std::size_t bytes = 0;
    Clock until;
  };

  std::mutex mutex_;
  std::vector<Freed> all_;
};

Parked& parked() {
  static auto* const made = new Parked;
  return *made;
}

// The kernels launched on the streams of record_stream().
Clock uses_elsewhere(const Block& block, StreamNumber owner) {
  Clock uses;
  for (const StreamNumber stream : block.streams) {
    if (stream != owner) uses.raise(stream, streams().launched(stream).of(stream));
  }
  return uses;
}

struct Held {
  BlockPtr block;
  StreamNumber owner = 0;
};

void give_back(void* context) {
  const std::unique_ptr<Held> held(static_cast<Held*>(context));
  Block& block = *held->block;
  if (block.is_of_graph) {
    if (const auto pool = block.pool.lock()) pool->give_back(held->block);
    return;
  }
  check_freed(block, held->owner);
  memory().forget(block);
  parked().add(block.device, block.bytes, uses_elsewhere(block, held->owner));
  parked().release();
}

BlockPtr allocate_in(const std::shared_ptr<GraphPool>& pool, std::size_t bytes) {
  BlockPtr block = pool->allocate(bytes);
  block->is_of_graph = true;
  block->pool = pool;
  return block;
}

BlockPtr allocate_on(c10::DeviceIndex device, StreamNumber stream, std::size_t bytes) {
  change_counters(device, [&](Counters& all) {
    check_memory(device, all.bytes, bytes);
    ++all.allocations;
    all.bytes += bytes;
    all.peak_bytes = std::max(all.peak_bytes, all.bytes);
  });
  BlockPtr block = memory().allocate(bytes, Place::device, device);
  const Epoch birth{stream, streams().launched(stream).of(stream), "its allocation"};
  block->streams.insert(stream);
  block->history = History(bytes, birth);
  return block;
}

class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::DeviceIndex index = current_device();
    const c10::Device device(kType, index);
    check_device(index);
    if (bytes == 0) return {nullptr, device};
    parked().release();
    const StreamNumber stream = current_stream(index);
    BlockPtr block = captured() != nullptr ? allocate_in(captured()->pool(), bytes)
                                           : allocate_on(index, stream, bytes);
    void* const data = memory().for_host(*block);
    return {data, new Held{std::move(block), stream}, &give_back, device};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(memory().for_kernels(to), memory().for_kernels(from), bytes);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {
    change_counters(current_device(), [](Counters& all) { ++all.emptied_caches; });
  }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    const BlockPtr block = memory().find(data.get());
    if (!block) return;
    const std::lock_guard lock(block->mutex);
    block->streams.insert(static_cast<StreamNumber>(stream.id()));
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const Counters all = counters(device);
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.allocated_bytes[0].current = static_cast<std::int64_t>(all.bytes);
    stats.allocated_bytes[0].peak = static_cast<std::int64_t>(all.peak_bytes);
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex device) override {
    change_counters(device, [](Counters& all) { all.peak_bytes = all.bytes; });
  }
};

}  // namespace

c10::DeviceAllocator& device_allocator() {
  static auto* const made = new Allocator;
  return *made;
}

at::Tensor new_tensor(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype) {
  return at::detail::empty_strided_generic(sizes, strides, &device_allocator(),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           dtype);
}

void resize(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides) {
  const std::size_t bytes = at::detail::computeStorageNbytes(
      sizes, strides, tensor.itemsize(), static_cast<std::size_t>(tensor.storage_offset()));
  if (bytes > tensor.storage().nbytes()) resize(tensor.storage(), bytes);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
}

void resize(const c10::Storage& storage, std::size_t bytes) {
  c10::DataPtr fresh = device_allocator().allocate(bytes);
  const std::size_t kept = std::min(bytes, storage.nbytes());
  if (kept > 0) {
    const std::vector<Access> accesses{{memory().find(storage.data()), {{0, kept}}, false},
                                       {memory().find(fresh.get()), {{0, kept}}, true}};
    LaunchedKernel(current_stream(current_device()), "resize", accesses).run([&] {
      device_allocator().copy_data(fresh.get(), storage.data(), kept);
    });
  }
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(fresh));
  storage.unsafeGetStorageImpl()->set_nbytes(bytes);
}

}  // namespace dtrain::testing::fake
