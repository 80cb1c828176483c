// CPU tensors over the memory of device tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <unordered_map>

#include "support/fake_device/memory.h"

namespace dtrain::testing::fake {

[[nodiscard]] inline bool is_on_device(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == c10::DeviceType::PrivateUse1;
}

/// The tensors of one kernel, as the CPU sees them and as the device does. Tensors that share a
/// storage on one side share one on the other.
///
/// Threads: one.
class Aliases {
 public:
  /// A CPU tensor over the same bytes, in the window of kernels. It keeps the memory, not the
  /// tensor: the host may free what a queued kernel still uses.
  [[nodiscard]] at::Tensor to_host(const at::Tensor& tensor);
  /// The device's tensor for a CPU tensor over a storage of to_host(); undefined for any other.
  [[nodiscard]] at::Tensor to_device(const at::Tensor& tensor) const;

 private:
  std::unordered_map<const c10::StorageImpl*, c10::Storage> hosts_;
  std::unordered_map<const c10::StorageImpl*, c10::Storage> devices_;
};

}  // namespace dtrain::testing::fake
