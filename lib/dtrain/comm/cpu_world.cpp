#include "dtrain/comm/cpu_world.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

namespace dtrain::comm {

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
