#include "support/fake_device/aliases.h"

#include <c10/core/CPUAllocator.h>

#include <utility>

namespace dtrain::testing::fake {
namespace {

c10::Storage over_same_bytes(const c10::Storage& device) {
  auto* const held = new BlockPtr(memory().find(device.data()));
  c10::DataPtr data(
      memory().for_kernels(device.mutable_data()), held,
      [](void* block) { delete static_cast<BlockPtr*>(block); }, c10::Device(c10::kCPU));
  return {c10::Storage::use_byte_size_t(), device.nbytes(), std::move(data), c10::GetCPUAllocator(),
          /*resizable=*/true};
}

at::Tensor over(const c10::Storage& storage, const at::Tensor& like, c10::DispatchKey key) {
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(key), like.dtype());
  c10::TensorImpl* const impl = made.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  impl->_set_conj(like.is_conj());
  impl->_set_neg(like.is_neg());
  return made;
}

}  // namespace

at::Tensor Aliases::to_host(const at::Tensor& tensor) {
  const c10::Storage& device = tensor.storage();
  c10::Storage& host = hosts_[device.unsafeGetStorageImpl()];
  if (!host) {
    host = over_same_bytes(device);
    devices_.emplace(host.unsafeGetStorageImpl(), device);
  }
  return over(host, tensor, c10::DispatchKey::CPU);
}

at::Tensor Aliases::to_device(const at::Tensor& tensor) const {
  const auto found = devices_.find(tensor.storage().unsafeGetStorageImpl());
  if (found == devices_.end()) return {};
  return over(found->second, tensor, c10::DispatchKey::PrivateUse1);
}

}  // namespace dtrain::testing::fake
