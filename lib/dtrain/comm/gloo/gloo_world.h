// Ranks that are processes, connected by LibTorch's gloo over TCP.
#pragma once

#include <memory>

#include "dtrain/comm/create_world.h"

namespace dtrain::comm {

/// Throws: as create_world.
[[nodiscard]] std::shared_ptr<World> create_gloo_world(const WorldOptions& options);

}  // namespace dtrain::comm
