#include "dtrain/device/graph.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <utility>

#include "dtrain/base/error.h"

namespace dtrain::device {
namespace {

using Makers = std::array<std::atomic<MakeRecorder>,
                          static_cast<std::size_t>(c10::DeviceType::COMPILE_TIME_MAX_DEVICE_TYPES)>;

std::atomic<MakeRecorder>& maker_of(c10::DeviceType type) {
  static Makers makers{};
  return makers.at(static_cast<std::size_t>(type));
}

}  // namespace

void register_recorder(c10::DeviceType type, MakeRecorder make) { maker_of(type) = make; }

std::unique_ptr<GraphRecorder> make_recorder(c10::Device device) {
  const MakeRecorder make = maker_of(device.type());
  if (make == nullptr) {
    base::fail(base::ErrorKind::usage,
               "--compile: device {} does not support graphs; omit --compile", device.str());
  }
  return make(device);
}

at::Tensor non_owning_view(const at::Tensor& tensor, void* context, c10::DeleterFnPtr on_release) {
  const c10::Storage& owner = tensor.storage();
  c10::Storage storage(c10::Storage::use_byte_size_t(), owner.nbytes(),
                       at::DataPtr(owner.mutable_data(), context, on_release, tensor.device()),
                       /*allocator=*/nullptr, /*resizable=*/false);
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(tensor.options().computeDispatchKey()),
      tensor.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(),
                                                    tensor.storage_offset());
  return made;
}

}  // namespace dtrain::device
