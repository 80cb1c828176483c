// Worlds within one process: ranks that are threads, and one rank with simulated peers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "dtrain/comm/world.h"

namespace dtrain::comm {

/// Runs `body` as `size` ranks, each in a thread, and returns when all have ended. They share
/// memory: a collective reads the other ranks' tensors in place. The first exception aborts every
/// group, so that all ranks come to an end, and is the one rethrown; but any other error replaces an
/// Error{comm}, which may be its consequence.
void run_local_ranks(std::int64_t size, const GroupOptions& options,
                     const std::function<void(const std::shared_ptr<World>&)>& body);

/// A world of one real rank with simulated peers, to time what a rank computes and sends: rank 0 of
/// `size`. Calls end at once and are counted; nobody answers: a sum is this rank's own
/// contribution, gathers repeat it for every rank, and what is received is zeros.
///
/// Threads: as World's.
[[nodiscard]] std::shared_ptr<World> make_silent_world(std::int64_t size,
                                                       const GroupOptions& options = {});

}  // namespace dtrain::comm
