// Streams for communication.
#pragma once

#include <c10/core/Stream.h>

namespace dtrain::cuda {

/// A stream that no one else uses, before others in turn: a call that waits for a peer holds up
/// nothing but the calls behind it. It stays until the process ends, because the allocator asks the
/// streams that used a tensor when it is given back.
[[nodiscard]] c10::Stream new_stream(c10::Device device);

}  // namespace dtrain::cuda
