#include "support/fake_device/counters.h"

#include <array>
#include <mutex>

#include "support/fake_device/fake_device.h"

namespace dtrain::testing::fake {
namespace {

struct Meters {
  std::mutex mutex;
  std::array<Counters, kDevices> devices;

  Counters& of(c10::DeviceIndex device) { return devices.at(static_cast<std::size_t>(device)); }
};

Meters& meters() {
  static Meters* const made = new Meters;  // never freed: tensors may outlive main
  return *made;
}

}  // namespace

Counters counters(c10::DeviceIndex device) {
  const std::lock_guard lock(meters().mutex);
  return meters().of(device);
}

void reset_counters(c10::DeviceIndex device) {
  change_counters(device, [](Counters& all) {
    all = Counters{.bytes = all.bytes, .peak_bytes = all.bytes, .host_waits = {}};
  });
}

void change_counters(c10::DeviceIndex device, const std::function<void(Counters&)>& change) {
  const std::lock_guard lock(meters().mutex);
  change(meters().of(device));
}

}  // namespace dtrain::testing::fake
