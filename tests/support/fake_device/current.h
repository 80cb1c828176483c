// The calling thread's current device and streams.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "support/fake_device/clock.h"

namespace dtrain::testing::fake {

/// Each thread starts with device 0 and the devices' default streams.
///
/// Throws:  c10::Error if there is no such device.
[[nodiscard]] c10::DeviceIndex current_device();
c10::DeviceIndex exchange_current_device(c10::DeviceIndex device);
[[nodiscard]] StreamNumber current_stream(c10::DeviceIndex device);
StreamNumber exchange_current_stream(c10::DeviceIndex device, StreamNumber stream);

/// Makes a device the current one while it lives.
class OnDevice {
 public:
  explicit OnDevice(c10::DeviceIndex device) : before_(exchange_current_device(device)) {}
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() { exchange_current_device(before_); }

 private:
  c10::DeviceIndex before_;
};

}  // namespace dtrain::testing::fake
