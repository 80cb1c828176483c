// Collectives over gloo point-to-point messages.
#pragma once

#include <cstdint>
#include <memory>

#include "dtrain/comm/internal/gloo/gloo_messenger.h"

namespace dtrain::comm {

/// Creates a Transport over LibTorch's gloo. Tree-ordered reductions, gathers and broadcasts
/// consist of point-to-point messages, so that an error can name the peer. With Reduction::fast,
/// all_reduce is gloo's own.
[[nodiscard]] std::unique_ptr<Transport> make_gloo_transport(
    std::unique_ptr<GlooMessenger> messenger, Reduction reduction);

/// Bytes of scratch memory that a rank's transport allocates.
[[nodiscard]] std::int64_t gloo_transport_bytes(const GroupLoad& load);

}  // namespace dtrain::comm
