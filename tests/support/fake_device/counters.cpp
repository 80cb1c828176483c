#include "support/fake_device/counters.h"

#include <array>
#include <atomic>
#include <mutex>
#include <utility>

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

namespace {

struct Kept {
  std::atomic<bool> is_on = false;
  std::mutex mutex;
  std::vector<Launch> launches;
};

Kept& kept() {
  static auto* const made = new Kept;  // never freed: streams may outlive main
  return *made;
}

}  // namespace

void keep_launches(bool keep) { kept().is_on = keep; }

std::vector<Launch> take_launches() {
  const std::lock_guard lock(kept().mutex);
  return std::exchange(kept().launches, {});
}

void note_launch(const Launch& launch) {
  if (!kept().is_on) return;
  const std::lock_guard lock(kept().mutex);
  kept().launches.push_back(launch);
}

}  // namespace dtrain::testing::fake
