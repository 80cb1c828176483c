// A world of one real rank with simulated peers, to time what a rank computes and sends.
#pragma once

#include <cstdint>
#include <memory>

#include "dtrain/comm/world.h"

namespace dtrain::comm {

/// Rank 0 of `size`. Calls end at once and are counted; nobody answers: a sum is this rank's own
/// contribution, gathers repeat it for every rank, and what is received is zeros.
///
/// Threads: as World's.
[[nodiscard]] std::shared_ptr<World> make_silent_world(std::int64_t size,
                                                       const GroupOptions& options = {});

}  // namespace dtrain::comm
