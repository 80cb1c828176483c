#include "dtrain/parallel/data/unit_buffer.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/Storage.h>

#include <cstring>
#include <memory>

#include "dtrain/base/check.h"

namespace dtrain::parallel {
namespace {

// (count) over a storage of the right size that points nowhere yet.
at::Tensor tensor_without_memory(std::int64_t count, at::ScalarType dtype) {
  const auto bytes = static_cast<std::size_t>(count) * c10::elementSize(dtype);
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, at::DataPtr(nullptr, at::kCPU),
                       /*allocator=*/nullptr, /*resizable=*/false);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
      c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({count});
  return tensor;
}

}  // namespace

UnitBuffer::UnitBuffer(const param::ArenaLayout& layout, param::UnitId unit, at::ScalarType dtype,
                       param::ArenaAllocator allocate)
    : allocate_(std::move(allocate)),
      first_(layout.parameters_of(unit).front()),
      flat_(tensor_without_memory(layout.unit_range(unit).size(), dtype)) {
  const std::int64_t begin = layout.unit_range(unit).begin;
  for (const param::ParameterId id : layout.parameters_of(unit)) {
    const param::ElementRange range = layout.range(id);
    views_.push_back(flat_.narrow(0, range.begin - begin, range.size()).view(layout.shape(id)));
  }
}

void UnitBuffer::take() {
  DTRAIN_CHECK(!is_taken());
  auto memory = std::make_unique<at::Tensor>(allocate_(static_cast<std::int64_t>(flat_.nbytes())));
  void* data = memory->mutable_data_ptr();
  set_data(at::DataPtr(
      data, memory.release(), [](void* owned) { delete static_cast<at::Tensor*>(owned); },
      at::kCPU));
}

void UnitBuffer::give_back() {
  if (!is_taken()) return;
#ifndef NDEBUG
  std::memset(flat_.mutable_data_ptr(), 0xFF, flat_.nbytes());  // NaN in every float format
#endif
  set_data(at::DataPtr(nullptr, at::kCPU));
}

const at::Tensor& UnitBuffer::view(param::ParameterId id) const {
  return views_.at(static_cast<std::size_t>(id - first_));
}

bool UnitBuffer::is_taken() const { return flat_.storage().data() != nullptr; }

void UnitBuffer::set_data(at::DataPtr data) {
  flat_.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(data));
}

}  // namespace dtrain::parallel
