// Counts tensor memory; installs a CPU allocator that caches large blocks for the next step.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace dtrain::metrics {

/// Tensor memory of this process in bytes.
struct MemoryUse {
  std::int64_t current = 0;
  std::int64_t peak = 0;  ///< maximum since the start, or since restart_peak() reset it
  std::int64_t kept = 0;  ///< cached free blocks; not included in `current` and `peak`
};

/// Makes LibTorch allocate CPU tensors through the counting allocator, which caches freed blocks of
/// 1 MiB and more for the next request of the same size. Every training step requests the same
/// sizes, and for a small model the page faults of fresh memory cost more than the matrix products.
/// Cached blocks count as free.
///
/// The cache is bounded: used and cached blocks together never exceed the highest use so far. If
/// begin_step and end_step are called, two further bounds hold. A step begins with at most as many
/// cached blocks of a size as the last step used at once. Between steps, used and cached blocks
/// together do not exceed their total at the end of the last step, unless the used blocks alone do.
///
/// Call once, before the first tensor: memory that LibTorch allocates without a tensor
/// (c10::Allocator::raw_allocate, as in oneDNN) is freed by the allocator installed at that time.
///
/// Threads: any thread may allocate.
void install_counting_allocator();

/// Counts tensor memory of other allocators: adds `bytes`, which may be negative.
void count_other_memory(std::int64_t bytes);

/// Returns this process's tensor memory on the device, as counted by the device's allocator; on the
/// CPU, by the counting allocator.
///
/// Threads: any.
[[nodiscard]] MemoryUse memory_use(c10::Device device = c10::DeviceType::CPU);

/// Resets the peak to the current use.
///
/// Threads: any.
void restart_peak(c10::Device device = c10::DeviceType::CPU);

/// Call at the beginning and end of training step `step`, counted from 1. Evaluations and samples
/// run between steps; their cached blocks of other sizes are freed when the next step begins.
///
/// Threads: each rank that is a thread calls it; the first call for a step counts.
void begin_step(std::int64_t step);
void end_step(std::int64_t step);

}  // namespace dtrain::metrics
