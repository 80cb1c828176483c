// What a fake device did: in numbers, and the kernels that were launched.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "support/fake_device/history.h"

namespace dtrain::testing::fake {

/// How often the host waited for a device, by cause.
struct Synchronisations {
  /// One element read: at::Tensor::item().
  std::uint64_t item = 0;
  /// Another operator whose value or output shape the host must know, such as equal or nonzero.
  std::uint64_t value = 0;
  /// A copy between device and host that is not asynchronous, or to pageable memory.
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
  /// Those of them that ran after their launch had returned.
  std::uint64_t late_kernels = 0;
  std::uint64_t allocations = 0;
  /// Graphs recorded, and run again.
  std::uint64_t captures = 0;
  std::uint64_t replays = 0;
  /// How often a thread made it its device, which was another one: on a GPU that makes a context
  /// of 0.5 GB.
  std::uint64_t selections = 0;
  /// How often the allocator was asked to give back what no tensor uses.
  std::uint64_t emptied_caches = 0;
  /// Bytes of device memory that tensors hold, or held until streams of record_stream() come so
  /// far, now and at most since the counters were reset.
  std::size_t bytes = 0;
  std::size_t peak_bytes = 0;
  Synchronisations host_waits;
};

/// What happened on a device since the last reset.
///
/// Threads: any.
[[nodiscard]] Counters counters(c10::DeviceIndex device = 0);
/// Sets all to zero, but `bytes`, and `peak_bytes` to that.
///
/// Threads: any.
void reset_counters(c10::DeviceIndex device = 0);

/// For the device's own code: adds to its counters.
///
/// Threads: any; `change` must not call the device.
void change_counters(c10::DeviceIndex device, const std::function<void(Counters&)>& change);

struct Launch {
  c10::DeviceIndex device = 0;
  Epoch kernel;
  /// The kernels that it runs after.
  Clock before;

  /// Neither of the two waits for the other.
  [[nodiscard]] bool is_beside(const Launch& other) const {
    return !kernel.is_before(other.before) && !other.kernel.is_before(before);
  }
};

/// Keeps the launches of all devices from now on, or no more.
///
/// Threads: any.
void keep_launches(bool keep);
/// Those kept since the last call, in the order in which they were launched.
///
/// Threads: any.
[[nodiscard]] std::vector<Launch> take_launches();

/// For the device's own code.
///
/// Threads: any.
void note_launch(const Launch& launch);

}  // namespace dtrain::testing::fake
