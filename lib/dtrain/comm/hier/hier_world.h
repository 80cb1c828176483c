// Ranks of several hosts: shared memory within a host, gloo across.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "dtrain/comm/create_world.h"
#include "dtrain/comm/host/process_neighbours.h"
#include "dtrain/comm/rendezvous/rendezvous.h"

namespace dtrain::comm {

/// The world of ranks that have met and mapped the memory of those of their host.
///
/// Collective: all ranks of the job.
[[nodiscard]] std::shared_ptr<World> create_hier_world(
    const WorldOptions& options, std::shared_ptr<Rendezvous> rendezvous,
    std::shared_ptr<ProcessNeighbours> neighbours, std::vector<std::int64_t> host_of_rank);

/// group_memory of such a world's group, which may lie on one host or on several.
[[nodiscard]] std::int64_t hier_group_memory(const PlannedGroup& group);

}  // namespace dtrain::comm
