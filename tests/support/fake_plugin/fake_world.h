// Ranks whose tensors lie on fake accelerators.
#pragma once

#include <memory>

#include "dtrain/comm/world.h"

namespace dtrain::testing {

/// A world of the same ranks as `host`, on a fake device. Its collectives are kernels on a stream
/// of each group's own, its sends and its receives on one for all groups, made when first used.
/// They run late, and carry the values through the host's groups. host: also the control plane.
///
/// Collective: every rank of `host`.
[[nodiscard]] std::shared_ptr<comm::World> make_fake_world(std::shared_ptr<comm::World> host,
                                                           c10::Device device);

}  // namespace dtrain::testing
