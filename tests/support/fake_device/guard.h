// Implements LibTorch's device guard, streams and events for the fake devices.
#pragma once

namespace dtrain::testing::fake {

/// Makes c10::Stream, c10::Event and the guards work with fake devices. Every new stream is
/// distinct, because reuse from a pool would hide races. Their calls, except the destruction of an
/// event, throw AcceleratorError if the device is lost.
void register_guard();

/// Makes at::manual_seed also seed the device's generator, which is of the CPU's type.
void register_hooks();

}  // namespace dtrain::testing::fake
