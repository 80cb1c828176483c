// Finds the places where a program makes one stream wait for another, and drops one of them to test
// that it is needed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "support/fake_device/history.h"

namespace dtrain::testing::fake {

/// A call site of c10::Event::block, identified by its call stack.
struct WaitSite {
  std::uint64_t id = 0;  ///< valid in this process
  std::string text;      ///< the functions, innermost first
};

/// Starts recording wait sites; waits at site `dropped` become no-ops.
///
/// Threads: any; while no other launches kernels.
void watch_waits(std::optional<std::uint64_t> dropped = {});
/// Stops recording. Returns the sites whose waits added an ordering, in
/// the order of their first call.
///
/// Threads: as watch_waits.
[[nodiscard]] std::vector<WaitSite> unwatch_waits();

/// For the device's own code: true if this wait of a stream for the kernels of `clock` is dropped.
///
/// Threads: any.
[[nodiscard]] bool drops_wait(StreamNumber stream, const Clock& clock);

}  // namespace dtrain::testing::fake
