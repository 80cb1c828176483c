#include "dtrain/comm/cpu_world.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "dtrain/base/error.h"

namespace dtrain::comm {

at::Tensor mapped_memory(std::int64_t bytes, const std::function<void(std::int64_t)>& count) {
  const auto options = at::TensorOptions().dtype(at::kByte);
  if (bytes == 0) return at::zeros({0}, options);
  const auto size = static_cast<std::size_t>(bytes);
  void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    base::fail(base::ErrorKind::memory,
               "out of memory: {} bytes for parameters or gradients; use --recompute level, a "
               "smaller --microbatch, sharding over more ranks, or a smaller model",
               bytes);
  }
  if (count) count(bytes);
  return at::from_blob(
      data, {bytes},
      [size, count](void* memory) {
        ::munmap(memory, size);
        if (count) count(-static_cast<std::int64_t>(size));
      },
      options);
}

CpuWorld::CpuWorld(std::int64_t rank, std::int64_t size, const GroupOptions& options,
                   CpuBackend backend)
    : rank_(rank),
      size_(size),
      options_(options),
      backend_(std::move(backend)),
      control_(split(ranks_below(size), kControlName)) {}

at::Tensor CpuWorld::allocate(std::int64_t bytes) {
  return backend_.allocate ? backend_.allocate(bytes) : at::zeros({bytes}, at::kByte);
}

std::shared_ptr<ProcessGroup> CpuWorld::split(std::span<const std::int64_t> ranks,
                                              std::string_view name) {
  const std::int64_t number = splits_++;
  const auto own = std::ranges::find(ranks, rank_);
  if (own == ranks.end()) return nullptr;
  GroupIdentity identity{.name = std::string(name),
                         .number = number,
                         .rank = own - ranks.begin(),
                         .world_ranks = {ranks.begin(), ranks.end()}};
  std::unique_ptr<Transport> transport;
  if (ranks.size() > 1) transport = backend_.connect(identity);
  return std::make_shared<QueuedGroup>(std::move(identity), options_, std::move(transport));
}

}  // namespace dtrain::comm
