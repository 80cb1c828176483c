// Ranks that are threads, each on a fake device of its own.
#pragma once

#include <memory>
#include <utility>

#include "support/fake_device/fake_device.h"
#include "support/fake_plugin/fake_world.h"

namespace dtrain::testing {

/// The device of the rank's number.
inline std::shared_ptr<comm::World> on_fake(std::shared_ptr<comm::World> host) {
  const c10::Device device(fake::kType, static_cast<c10::DeviceIndex>(host->rank()));
  return make_fake_world(std::move(host), device);
}

}  // namespace dtrain::testing
