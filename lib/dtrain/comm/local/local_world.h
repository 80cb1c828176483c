// Ranks that are threads of one process.
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

}  // namespace dtrain::comm
