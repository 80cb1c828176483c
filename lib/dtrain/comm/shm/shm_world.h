// Ranks that are processes of one host and share memory.
#pragma once

#include <cstdint>
#include <memory>

#include "dtrain/comm/create_world.h"
#include "dtrain/comm/host/process_neighbours.h"
#include "dtrain/comm/rendezvous/rendezvous.h"

namespace dtrain::comm {

/// The world of ranks that have met and mapped each other's memory.
///
/// Collective: all ranks of the job.
[[nodiscard]] std::shared_ptr<World> create_shm_world(
    const WorldOptions& options, std::shared_ptr<Rendezvous> rendezvous,
    std::shared_ptr<ProcessNeighbours> neighbours);

/// group_memory of such a world's group.
[[nodiscard]] std::int64_t shm_group_memory(const PlannedGroup& group);

}  // namespace dtrain::comm
