// Devices, streams and events as LibTorch's guards see them.
#pragma once

namespace dtrain::testing::fake {

/// Makes c10::Stream, c10::Event and the guards work with the fake devices. A new stream is a new
/// one: a pool's reuse would hide races.
///
/// Throws:  the calls, all but destroying an event: AcceleratorError if the device is lost.
void register_guard();

/// at::manual_seed also seeds the device's generator, which is the CPU's kind.
void register_hooks();

}  // namespace dtrain::testing::fake
