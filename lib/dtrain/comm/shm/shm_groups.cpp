#include "dtrain/comm/shm/shm_groups.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "dtrain/comm/shm/shm_transport.h"
#include "dtrain/comm/slices.h"

namespace dtrain::comm {

std::unique_ptr<Transport> ShmGroups::connect(const std::string& key,
                                              const GroupIdentity& identity) {
  Seat seat = groups_.seat({.key = key,
                            .name = identity.name,
                            .rank = identity.rank,
                            .world_ranks = identity.world_ranks});
  return std::make_unique<ShmTransport>(std::move(seat), groups_.neighbours());
}

at::Tensor ShmGroups::allocate(std::int64_t bytes) {
  if (bytes == 0) return at::zeros({0}, at::kByte);
  const auto memory = groups_.neighbours()->allocate(bytes);
  return at::from_blob(
      memory.get(), {bytes}, [memory](void*) {}, at::kByte);
}

// An all_to_all has a table in the staging area, whatever it sends.
std::int64_t shm_group_memory(const PlannedGroup& group) {
  GroupLoad load = group.load;
  if (group.exchanges) load.foreign = std::max(load.foreign, staging_bytes(load.size));
  return ShmTransport::bytes(load);
}

}  // namespace dtrain::comm
