// Waiting on the host for a device.
#pragma once

#include <c10/core/Device.h>

namespace dtrain::device {

/// Returns when all that was put on the device's streams has ended; at once for the CPU.
///
/// Throws:  c10::Error of a kernel that has failed.
/// Threads: any.
void synchronize(c10::Device device);

/// Returns when what the calling thread has put on its current stream of the device has ended.
///
/// Throws:  as synchronize.
/// Threads: any.
void synchronize_stream(c10::Device device);

}  // namespace dtrain::device
