// Waits on the host for a device, and finds out when it reached places in its work.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/trace.h"

namespace dtrain::device {

/// Returns when all that was put on the device's streams has ended; at once for the CPU.
///
/// Throws:  c10::Error of a kernel that has failed.
/// Threads: any.
void synchronize(c10::Device device);

/// Returns when what the calling thread has put on its current stream of the device has ended.
///
/// Throws:  as synchronize.
/// Threads: any.
void synchronize_stream(c10::Device device);

/// Marks on the stream that is current in the calling thread. A mark costs an event of the device.
///
/// Threads: one.
class Timeline final : public base::DeviceMarks {
 public:
  /// Waits until the device has ended its work, so that its clock can be read beside the host's.
  explicit Timeline(c10::Device device);

  std::int64_t mark() override;
  /// Returns when the device reached each mark, on the host's clock. Waits until it has ended its
  /// work.
  ///
  /// Throws: c10::Error of a kernel that has failed.
  [[nodiscard]] std::vector<base::Clock::time_point> times() const;

 private:
  [[nodiscard]] c10::Event event_here() const;

  c10::Device device_;
  c10::Event first_;
  base::Clock::time_point begin_;  // when the device reached `first_`
  std::vector<c10::Event> marks_;
};

}  // namespace dtrain::device
