// The CPU allocator of a dtrain process: counts tensor memory and keeps large blocks for the next
// step.
#pragma once

#include <cstdint>

namespace dtrain::metrics {

/// Tensor memory of this process in bytes.
struct MemoryUse {
  std::int64_t current = 0;
  std::int64_t peak = 0;  ///< since the start, or the last restart_peak
};

/// Makes LibTorch allocate CPU tensors through the counting allocator, which hands freed blocks of
/// 1 MiB and more to the next request of the same size: a training step asks for the same sizes
/// again and again, and pages that the system takes back and zeroes anew cost more than the
/// products of a small model. Kept blocks count as free.
///
/// Call once, before the first tensor: what LibTorch takes without a tensor (c10::Allocator::
/// raw_allocate, as oneDNN does) is freed by the allocator of that moment.
///
/// Threads: the allocator serves any.
void install_counting_allocator();

/// Counts tensor memory that comes from elsewhere: `bytes` more, or less if negative.
void count_other_memory(std::int64_t bytes);

[[nodiscard]] MemoryUse memory_use();

/// The peak is from now on that of what follows.
void restart_peak();

}  // namespace dtrain::metrics
