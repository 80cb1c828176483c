#include "cuda/nccl/registered_memory.h"

#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <thread>
#include <utility>

namespace dtrain::cuda {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

at::cuda::MemPool make_pool(c10::Device device, const std::shared_ptr<Segments>& segments) {
  const c10::cuda::CUDAGuard guard(device);
  return at::cuda::MemPool(torch::cuda::CUDAPluggableAllocator::createCustomAllocator(
      [segments](std::size_t bytes, int index, cudaStream_t) {
        const c10::cuda::CUDAGuard on(static_cast<c10::DeviceIndex>(index));
        return segments->allocate(bytes);
      },
      [segments](void* base, std::size_t, int index, cudaStream_t) {
        const c10::cuda::CUDAGuard on(static_cast<c10::DeviceIndex>(index));
        segments->free(base);
      }));
}

// Makes the calling thread allocate from the pool during its lifetime.
class PoolScope {
 public:
  PoolScope(c10::Device device, c10::MempoolId_t pool) : device_(device.index()), pool_(pool) {
    allocator::beginAllocateToPool(device_, pool_,
                                   [own = std::this_thread::get_id()](cudaStream_t) {
                                     return std::this_thread::get_id() == own;
                                   });
  }
  PoolScope(const PoolScope&) = delete;
  PoolScope& operator=(const PoolScope&) = delete;
  ~PoolScope() {
    allocator::endAllocateToPool(device_, pool_);
    allocator::releasePool(device_, pool_);  // beginAllocateToPool took a reference
  }

 private:
  c10::DeviceIndex device_;
  c10::MempoolId_t pool_;
};

}  // namespace

void* Segments::allocate(std::size_t bytes) noexcept {
  void* base = nullptr;
  if (ncclMemAlloc(&base, bytes) != ncclSuccess) return nullptr;
  const std::lock_guard lock(mutex_);
  segments_[static_cast<const std::byte*>(base)].bytes = bytes;
  return base;
}

void Segments::free(void* base) noexcept {
  std::vector<std::weak_ptr<Communicator>> users;
  {
    const std::lock_guard lock(mutex_);
    users = std::move(segments_.extract(static_cast<const std::byte*>(base)).mapped().users);
  }
  for (const auto& user : users) {
    if (const auto communicator = user.lock()) communicator->deregister_memory(base);
  }
  ncclMemFree(base);
}

void Segments::register_with(const std::shared_ptr<Communicator>& communicator, const void* address,
                             const base::Deadline& deadline) {
  const std::byte* base = nullptr;
  std::size_t bytes = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto* byte = static_cast<const std::byte*>(address);
    const auto behind = segments_.upper_bound(byte);
    if (behind == segments_.begin()) return;
    auto& [begin, segment] = *std::prev(behind);
    if (byte >= begin + segment.bytes) return;
    const bool is_known =
        std::any_of(segment.users.begin(), segment.users.end(), [&](const auto& user) {
          return !user.owner_before(communicator) && !communicator.owner_before(user);
        });
    if (is_known) return;
    segment.users.push_back(communicator);
    base = begin;
    bytes = segment.bytes;
  }
  communicator->register_memory(const_cast<std::byte*>(base), bytes, deadline);
}

RegisteredMemory::RegisteredMemory(c10::Device device)
    : device_(device),
      segments_(std::make_shared<Segments>()),
      pool_(make_pool(device, segments_)) {}

at::Tensor RegisteredMemory::allocate(std::int64_t bytes) {
  const PoolScope in_pool(device_, pool_.id());
  return at::zeros({bytes}, at::TensorOptions(device_).dtype(at::kByte));
}

}  // namespace dtrain::cuda
