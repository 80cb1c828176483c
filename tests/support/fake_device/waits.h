// Finds the call sites at which a program makes one stream wait for another, and drops the waits of
// one site to test that they are needed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "support/fake_device/history.h"

namespace dtrain::testing::fake {

/// A call site of c10::Event::block, identified by its call stack.
struct WaitSite {
  std::uint64_t id = 0;  ///< valid in this process only
  std::string text;      ///< the functions of the call stack, innermost first
};

/// Starts recording wait sites; waits at site `dropped` become no-ops.
///
/// Threads: any, while no other thread launches kernels.
void watch_waits(std::optional<std::uint64_t> dropped = {});
/// Stops recording. Returns the sites with waits that added an ordering, in order of first call.
///
/// Threads: as watch_waits.
[[nodiscard]] std::vector<WaitSite> unwatch_waits();

/// Returns whether this wait of a stream for the kernels of `clock` is dropped; for the fake
/// device's implementation.
///
/// Threads: any.
[[nodiscard]] bool drops_wait(StreamNumber stream, const Clock& clock);

}  // namespace dtrain::testing::fake
