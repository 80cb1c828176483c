// The kernels that were launched, and which of them may run at the same time.
#pragma once

#include <c10/core/Device.h>

#include <vector>

#include "support/fake_device/clock.h"

namespace dtrain::testing::fake {

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
