// Memory that goes back to the system when its tensor dies.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace dtrain::comm {

/// `bytes` zeroed bytes on pages of their own, (bytes) uint8. `count` (may be empty) receives the
/// bytes taken and, as a negative number, those given back; it must outlive the tensor.
///
/// Throws:  Error{memory} if there is none.
/// Threads: any.
[[nodiscard]] at::Tensor mapped_memory(std::int64_t bytes,
                                       const std::function<void(std::int64_t)>& count);

}  // namespace dtrain::comm
