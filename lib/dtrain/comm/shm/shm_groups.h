// Makes groups of ranks of one host that share memory. Private to comm.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "dtrain/comm/create_world.h"
#include "dtrain/comm/host/host_groups.h"
#include "dtrain/comm/queued_group.h"

namespace dtrain::comm {

/// Of ranks that have mapped each other's memory.
class ShmGroups {
 public:
  ShmGroups(const WorldOptions& options, std::shared_ptr<Rendezvous> rendezvous,
            std::shared_ptr<ProcessNeighbours> neighbours)
      : groups_(options.group.timeout, std::move(rendezvous), std::move(neighbours)) {}

  /// The transport of a group of several, whose keys in the store begin with `key`.
  ///
  /// Collective: the group.
  [[nodiscard]] std::unique_ptr<Transport> connect(const std::string& key,
                                                   const GroupIdentity& identity);
  /// As World::allocate.
  [[nodiscard]] at::Tensor allocate(std::int64_t bytes);

 private:
  HostGroups groups_;
};

/// group_memory of a group of one host.
[[nodiscard]] std::int64_t shm_group_memory(const PlannedGroup& group);

}  // namespace dtrain::comm
