// The operators that make, resize and alias device tensors.
#include <ATen/EmptyTensor.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>

#include <algorithm>
#include <optional>

#include "support/fake_device/aliases.h"
#include "support/fake_device/current.h"
#include "support/fake_device/device_memory.h"
#include "support/fake_device/kernels.h"

namespace dtrain::testing::fake {
namespace {

using Dtype = std::optional<at::ScalarType>;
using Layout = std::optional<at::Layout>;
using Device = std::optional<at::Device>;
using Pin = std::optional<bool>;

c10::DeviceIndex index_of(const Device& device) {
  return device && device->has_index() ? device->index() : current_device();
}

at::Tensor empty(at::IntArrayRef sizes, Dtype dtype, Layout, Device device, Pin,
                 std::optional<at::MemoryFormat> format) {
  const OnDevice on(index_of(device));
  return at::detail::empty_generic(sizes, &device_allocator(),
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, Dtype dtype, Layout,
                         Device device, Pin) {
  const OnDevice on(index_of(device));
  return new_tensor(sizes, strides, c10::dtype_or_default(dtype));
}

// Not at::native::resize_: it copies through the storage on the host.
const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef sizes,
                          std::optional<at::MemoryFormat>) {
  if (self.sizes() == sizes) return self;
  std::vector<std::int64_t> strides(sizes.size(), 1);
  for (std::size_t d = sizes.size(); d-- > 1;) {
    strides[d - 1] = strides[d] * std::max<std::int64_t>(sizes[d], 1);
  }
  const OnDevice on(self.device().index());
  resize(self, sizes, strides);
  return self;
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  if (target.sizes() != source.sizes()) target.resize_(source.sizes());
  return copy_from(source, target, false);
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  device_allocator().recordStream(self.storage().data_ptr(), stream);
}

}  // namespace

void register_tensor_operators(torch::Library& aten) {
  aten.impl("empty.memory_format", &empty);
  aten.impl("empty_strided", &empty_strided);
  aten.impl("resize_", &resize_);
  aten.impl("_copy_from", &copy_from);
  aten.impl("_copy_from_and_resize", &copy_from_and_resize);
  aten.impl("record_stream", &record_stream);
  aten.impl("view", &at::native::view);
  aten.impl("as_strided", &at::native::as_strided_tensorimpl);
  aten.impl("_reshape_alias", &at::native::_reshape_alias);
  aten.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
  aten.impl("set_.source_Storage",
            static_cast<at::Tensor& (*)(at::Tensor&, at::Storage)>(&at::native::set_));
  aten.impl("set_.source_Tensor", &at::native::set_tensor_);
}

}  // namespace dtrain::testing::fake
