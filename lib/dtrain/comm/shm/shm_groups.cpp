#include "dtrain/comm/shm/shm_groups.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include "dtrain/comm/shm/shm_transport.h"

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

}  // namespace dtrain::comm
