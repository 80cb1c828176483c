// Collectives over gloo messages.
#pragma once

#include <cstdint>
#include <memory>

#include "dtrain/comm/internal/gloo/link.h"

namespace dtrain::comm {

/// A Transport over LibTorch's gloo. Reductions in tree order, gathers and broadcasts are direct
/// exchanges of messages, so that an error can name the peer; Reduction::fast leaves all_reduce to
/// gloo.
[[nodiscard]] std::unique_ptr<Transport> make_gloo_transport(std::unique_ptr<Link> link,
                                                             Reduction reduction);

/// Returns the bytes of a rank's scratch memory.
[[nodiscard]] std::int64_t gloo_transport_bytes(const GroupLoad& load);

}  // namespace dtrain::comm
