// Cuts a tensor into parts that fit into memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dtrain/checkpoint/format/box.h"

namespace dtrain::checkpoint::format {

/// Boxes of at most `max_elements` that cover a tensor once, each one run of its row-major values,
/// in their order; none for a tensor without elements. Shapes are as a parsed manifest has them.
[[nodiscard]] std::vector<Box> slabs(std::span<const std::int64_t> shape,
                                     std::int64_t max_elements);

}  // namespace dtrain::checkpoint::format
