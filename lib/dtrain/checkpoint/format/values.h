// Converts single elements of tensors to numbers.
#pragma once

#include <cstddef>

#include "dtrain/checkpoint/format/safetensors.h"

namespace dtrain::checkpoint::format {

/// The element whose size_of(dtype) bytes begin at `bytes`, aligned or not; of integers beyond 2^53
/// the nearest double.
[[nodiscard]] double value_at(Dtype dtype, const std::byte* bytes);

}  // namespace dtrain::checkpoint::format
