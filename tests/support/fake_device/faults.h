// Fault injection for fake devices.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace dtrain::testing::fake {

/// Limits the device's memory to `bytes`; empty: no limit. An allocation beyond the limit throws
/// c10::OutOfMemoryError, as CUDA's allocator does.
///
/// Threads: any.
void limit_memory(c10::DeviceIndex device, std::optional<std::size_t> bytes);

/// Returns the free memory; empty if there is no limit.
///
/// Threads: any.
[[nodiscard]] std::optional<std::size_t> free_memory(c10::DeviceIndex device);

/// CUDA error codes.
inline constexpr int kMemoryAllocation = 2;
inline constexpr int kUncorrectable = 214;
inline constexpr int kIllegalAddress = 700;

/// Makes the device fail after `kernels` more launches: queued kernels do not run, and every call
/// except freeing memory throws c10::AcceleratorError with this code, as CUDA does after an ECC
/// error. Empty: repairs the device.
///
/// Threads: any.
void lose_device_after(c10::DeviceIndex device, std::optional<std::uint64_t> kernels,
                       int error_code = kUncorrectable);

/// Checks before each call, launch and allocation; for the fake device's implementation.
///
/// Throws:  check_device: AcceleratorError if the device is lost. check_launch: the same, and
///          counts a launch. check_memory: OutOfMemoryError if `wanted` bytes exceed the limit.
/// Threads: any.
void check_device(c10::DeviceIndex device);
void check_launch(c10::DeviceIndex device);
void check_memory(c10::DeviceIndex device, std::size_t held, std::size_t wanted);
[[nodiscard]] bool is_lost(c10::DeviceIndex device);

}  // namespace dtrain::testing::fake
