// Synchronises the host with a device, and timestamps device events on the host's clock.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/trace.h"

namespace dtrain::device {

/// Waits until all work enqueued on the device's streams has completed; no-op for the CPU.
///
/// Throws:  c10::Error if a kernel has failed.
/// Threads: any.
void synchronize(c10::Device device);

/// Waits until all work on the calling thread's current stream of the device has completed.
///
/// Throws:  as synchronize.
/// Threads: any.
void synchronize_stream(c10::Device device);

/// Records timestamps on the calling thread's current stream. Each mark costs one device event.
///
/// Threads: one.
class Timeline final : public base::DeviceMarks {
 public:
  /// Waits until the device is idle, to align its clock with the host's.
  explicit Timeline(c10::Device device);

  std::int64_t mark() override;
  /// Returns the time at which the device reached each mark, on the host's clock. Waits until the
  /// device is idle.
  ///
  /// Throws: c10::Error if a kernel has failed.
  [[nodiscard]] std::vector<base::Clock::time_point> times() const;

 private:
  [[nodiscard]] c10::Event event_here() const;

  c10::Device device_;
  c10::Event first_;
  base::Clock::time_point begin_;  // when the device reached `first_`
  std::vector<c10::Event> marks_;
};

}  // namespace dtrain::device
