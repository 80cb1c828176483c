// Measures the machine's peak speed of matrix products, for MFU.
#pragma once

#include <c10/core/TensorOptions.h>

#include <optional>

#include "dtrain/comm/world.h"

namespace dtrain::metrics {

/// FLOP/s of the best of a few square matrix products in the options' dtype on their device, on a
/// CPU with the threads this process uses now; larger ones where small ones end too soon to tell.
/// Nothing where the device has no room for them. Takes about 50 ms, gives its memory back, and
/// restarts the peak of memory.
[[nodiscard]] std::optional<double> measure_peak_flops(const at::TensorOptions& options);

/// FLOP/s of all ranks, if each is as fast as this one. They measure at the same time, and none
/// goes on while another measures.
///
/// Collective: every rank of `world`.
[[nodiscard]] std::optional<double> peak_flops_of(comm::World& world, at::ScalarType dtype);

}  // namespace dtrain::metrics
