// The places of a program where a stream waits for another one, and what happens without one of
// them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "support/fake_device/history.h"

namespace dtrain::testing::fake {

/// A call of c10::Event::block, told from others by the functions that led to it.
struct WaitSite {
  std::uint64_t id = 0;  ///< holds in this process
  std::string text;      ///< the functions, the innermost first
};

/// Begins to note the places of waits; with `dropped`, waits of that place do nothing.
///
/// Threads: any; while no other launches kernels.
void watch_waits(std::optional<std::uint64_t> dropped = {});
/// Ends it. Returns the places whose waits ordered something that was not ordered without them, in
/// the order in which they were first met.
///
/// Threads: as watch_waits.
[[nodiscard]] std::vector<WaitSite> unwatch_waits();

/// For the device's own code: whether this wait of a stream for the kernels of `clock` is dropped.
///
/// Threads: any.
[[nodiscard]] bool drops_wait(StreamNumber stream, const Clock& clock);

}  // namespace dtrain::testing::fake
