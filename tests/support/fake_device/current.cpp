#include "support/fake_device/current.h"

#include <c10/util/Exception.h>

#include <array>
#include <numeric>
#include <utility>

#include "support/fake_device/fake_device.h"

namespace dtrain::testing::fake {
namespace {

struct Current {
  c10::DeviceIndex device = 0;
  std::array<StreamNumber, kDevices> streams{};

  Current() { std::iota(streams.begin(), streams.end(), StreamNumber{0}); }
};

Current& current() {
  thread_local Current of_this_thread;
  return of_this_thread;
}

StreamNumber& stream_of(c10::DeviceIndex device) {
  TORCH_CHECK(device >= 0 && device < kDevices, "fake:", int{device}, " does not exist; there are ",
              int{kDevices}, " fake devices");
  return current().streams[static_cast<std::size_t>(device)];
}

}  // namespace

c10::DeviceIndex current_device() { return current().device; }

c10::DeviceIndex exchange_current_device(c10::DeviceIndex device) {
  (void)stream_of(device);
  return std::exchange(current().device, device);
}

StreamNumber current_stream(c10::DeviceIndex device) { return stream_of(device); }

StreamNumber exchange_current_stream(c10::DeviceIndex device, StreamNumber stream) {
  return std::exchange(stream_of(device), stream);
}

}  // namespace dtrain::testing::fake
