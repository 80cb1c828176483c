// Worlds within one process: ranks that are threads, and one rank with simulated peers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "dtrain/comm/world.h"

namespace dtrain::comm {

/// Runs `body` as `size` ranks, each in a thread, and returns when all have ended. Collectives read
/// the other ranks' tensors in place. The first exception aborts every group, so that all ranks
/// end. It is then rethrown, unless it is an Error{comm} and a rank threw an error of another kind,
/// which may have caused it: then that error is rethrown.
void run_local_ranks(std::int64_t size, const GroupOptions& options,
                     const std::function<void(const std::shared_ptr<World>&)>& body);

/// Creates a world in which rank 0 of `size` is real and its peers are simulated, to time one
/// rank's computation. Calls end at once and are counted: a sum is this rank's own contribution,
/// gathers repeat it for every rank, and received tensors are zeros.
///
/// Threads: as World's.
[[nodiscard]] std::shared_ptr<World> make_silent_world(std::int64_t size,
                                                       const GroupOptions& options = {});

}  // namespace dtrain::comm
