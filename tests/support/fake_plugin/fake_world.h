// A world of ranks with tensors on fake accelerators.
#pragma once

#include <memory>

#include "dtrain/comm/world.h"

namespace dtrain::testing {

/// Makes a world with the same ranks as `host`, on a fake device. Collectives, sends and receives
/// are kernels that run late and exchange values through the groups of `host`. Each group has a
/// stream for its collectives; all groups share one stream for sends and one for receives. Streams
/// are created on first use. host: also serves as the control plane.
///
/// Collective: every rank of `host`.
[[nodiscard]] std::shared_ptr<comm::World> make_fake_world(std::shared_ptr<comm::World> host,
                                                           c10::Device device);

}  // namespace dtrain::testing
