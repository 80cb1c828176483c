// Ranks that are processes, connected by LibTorch's gloo over TCP.
#pragma once

#include <memory>

#include "dtrain/comm/create_world.h"
#include "dtrain/comm/rendezvous/rendezvous.h"

namespace dtrain::comm {

/// The world of ranks that have met.
[[nodiscard]] std::shared_ptr<World> create_gloo_world(const WorldOptions& options,
                                                       std::shared_ptr<Rendezvous> rendezvous);

}  // namespace dtrain::comm
