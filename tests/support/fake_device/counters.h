// Counters of a fake device, and a record of kernel launches.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "support/fake_device/history.h"

namespace dtrain::testing::fake {

/// Numbers of host synchronizations with a device, by cause.
struct Synchronisations {
  /// Reads of one element: at::Tensor::item().
  std::uint64_t item = 0;
  /// Other operators whose result or output shape the host needs, such as equal or nonzero.
  std::uint64_t value = 0;
  /// Copies between device and host that are synchronous, or to pageable memory.
  std::uint64_t copy = 0;
  std::uint64_t stream = 0;
  std::uint64_t device = 0;
  std::uint64_t event = 0;

  [[nodiscard]] std::uint64_t total() const {
    return item + value + copy + stream + device + event;
  }
};

struct Counters {
  std::uint64_t kernels = 0;
  /// Kernels that ran after their launch had returned.
  std::uint64_t late_kernels = 0;
  std::uint64_t allocations = 0;
  /// Graphs captured and replayed.
  std::uint64_t captures = 0;
  std::uint64_t replays = 0;
  /// Number of times that a thread switched to this device from another; on a GPU each creates a
  /// context of 0.5 GB.
  std::uint64_t selections = 0;
  /// Number of times that the allocator's cache was emptied.
  std::uint64_t emptied_caches = 0;
  /// Bytes of device memory in use, now and at the peak since the counters were reset: memory of
  /// tensors, and freed memory that streams of record_stream() may still use.
  std::size_t bytes = 0;
  std::size_t peak_bytes = 0;
  Synchronisations host_waits;
};

/// Returns the counts since the last reset.
///
/// Threads: any.
[[nodiscard]] Counters counters(c10::DeviceIndex device = 0);
/// Resets all counters except `bytes`; sets `peak_bytes` to `bytes`.
///
/// Threads: any.
void reset_counters(c10::DeviceIndex device = 0);

/// Updates the device's counters; for the fake device's implementation.
///
/// Threads: any; `change` must not call the device.
void change_counters(c10::DeviceIndex device, const std::function<void(Counters&)>& change);

struct Launch {
  c10::DeviceIndex device = 0;
  Epoch kernel;
  /// The kernels that are ordered before this kernel.
  Clock before;

  /// True if the two launches are unordered.
  [[nodiscard]] bool is_beside(const Launch& other) const {
    return !kernel.is_before(other.before) && !other.kernel.is_before(before);
  }
};

/// Starts or stops recording the launches of all devices.
///
/// Threads: any.
void keep_launches(bool keep);
/// Returns the launches recorded since the last call, in launch order.
///
/// Threads: any.
[[nodiscard]] std::vector<Launch> take_launches();

/// Records a launch; for the fake device's implementation.
///
/// Threads: any.
void note_launch(const Launch& launch);

}  // namespace dtrain::testing::fake
