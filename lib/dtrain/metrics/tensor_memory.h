// The memory of tensors; the CPU allocator of a dtrain process, which counts it and keeps large
// blocks for the next step.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace dtrain::metrics {

/// Tensor memory of this process in bytes.
struct MemoryUse {
  std::int64_t current = 0;
  std::int64_t peak = 0;  ///< since the start, or the last restart_peak
  std::int64_t kept = 0;  ///< freed blocks that wait for a request; not part of the others
};

/// Makes LibTorch allocate CPU tensors through the counting allocator, which hands freed blocks of
/// 1 MiB and more to the next request of the same size: a training step asks for the same sizes
/// again and again, and pages that the system takes back and zeroes anew cost more than the
/// products of a small model. Kept blocks count as free. What is kept is bounded: blocks in use and
/// kept take no more together than those in use once did. Once steps are told (begin_step,
/// end_step), a step begins with no more blocks of a size than the last one used at once, and
/// between steps blocks in use and kept take no more together than at the last step's end, unless
/// those in use alone do.
///
/// Call once, before the first tensor: what LibTorch takes without a tensor (c10::Allocator::
/// raw_allocate, as oneDNN does) is freed by the allocator of that moment.
///
/// Threads: the allocator serves any.
void install_counting_allocator();

/// Counts tensor memory that comes from elsewhere: `bytes` more, or less if negative.
void count_other_memory(std::int64_t bytes);

/// Of this process: on the device as its allocator counts, for the CPU as the counting allocator.
///
/// Threads: any.
[[nodiscard]] MemoryUse memory_use(c10::Device device = c10::DeviceType::CPU);

/// The peak is from now on that of what follows.
///
/// Threads: any.
void restart_peak(c10::Device device = c10::DeviceType::CPU);

/// Brackets training step `step`, 1 or more, each larger than the last. Between steps there are
/// evaluations and samples, whose blocks of other sizes are freed when the next step begins.
///
/// Threads: of ranks that are threads each calls it; the first call for a step counts.
void begin_step(std::int64_t step);
void end_step(std::int64_t step);

}  // namespace dtrain::metrics
