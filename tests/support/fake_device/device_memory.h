// The device memory allocator, and functions that create device tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/CachingDeviceAllocator.h>

namespace dtrain::testing::fake {

/// Allocates on the current device, for its current stream. Freed memory belongs to that stream. It
/// is a race to free memory that a kernel of another stream may still use, unless record_stream()
/// or an event orders the two.
///
/// Throws:  c10::OutOfMemoryError, AcceleratorError (faults.h).
/// Threads: any.
c10::DeviceAllocator& device_allocator();

/// Returns an uninitialized tensor on the current device.
[[nodiscard]] at::Tensor new_tensor(at::IntArrayRef sizes, at::IntArrayRef strides,
                                    at::ScalarType dtype);

/// Sets a tensor's sizes and strides; enlarges its storage if needed and keeps its values.
void resize(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides);

/// Reallocates a storage to `bytes`, keeping its values.
void resize(const c10::Storage& storage, std::size_t bytes);

}  // namespace dtrain::testing::fake
