// The memory of tensors where a rank computes.
#pragma once

#include <c10/core/Device.h>

#include "dtrain/metrics/cpu_memory.h"

namespace dtrain::metrics {

/// Of this process: on the device as its allocator counts, for the CPU memory_use().
///
/// Threads: any.
[[nodiscard]] MemoryUse memory_use(c10::Device device);

/// The peak is from now on that of what follows.
///
/// Threads: any.
void restart_peak(c10::Device device);

}  // namespace dtrain::metrics
