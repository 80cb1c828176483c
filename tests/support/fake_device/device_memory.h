// The allocator of device memory, and tensors in it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/CachingDeviceAllocator.h>

namespace dtrain::testing::fake {

/// Allocates on the current device, for its current stream. Freed memory belongs to that stream: it
/// is a race to free what a kernel of another stream may still use, without record_stream() or an
/// event.
///
/// Throws:  c10::OutOfMemoryError, AcceleratorError (faults.h).
/// Threads: any.
c10::DeviceAllocator& device_allocator();

/// A tensor without values, on the current device.
[[nodiscard]] at::Tensor new_tensor(at::IntArrayRef sizes, at::IntArrayRef strides,
                                    at::ScalarType dtype);

/// Gives a tensor these sizes and strides, and more memory if they need more; its values stay.
void resize(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides);

/// Gives a storage a memory of `bytes` with the same values.
void resize(const c10::Storage& storage, std::size_t bytes);

}  // namespace dtrain::testing::fake
