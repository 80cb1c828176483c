// Adds the contributions of all ranks, element by element, in tree order.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "dtrain/comm/operation.h"

namespace dtrain::comm {

/// float32, float64, bfloat16, float16, int64 and uint8 can be reduced.
[[nodiscard]] bool is_reducible(at::ScalarType dtype);

/// output[i] = the sum (or maximum; NaN wins) over all inputs[r][i], added in the order of
/// tree_order.h. bfloat16 and float16 are added in float32 and rounded once, at the end.
///
/// Shapes:  every input and the output: count elements of dtype; the output may be one of the
///          inputs.
/// Threads: runs in the caller's thread alone.
void reduce_in_tree_order(std::span<const std::byte* const> inputs, std::byte* output,
                          std::int64_t count, at::ScalarType dtype, ReduceOp op);

}  // namespace dtrain::comm
