#include "dtrain/parallel/data/internal/unit_buffer.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/Storage.h>

#include <memory>

#include "dtrain/base/error.h"

namespace dtrain::parallel {
namespace {

// Returns a tensor (count) whose storage has the right size and a null pointer.
at::Tensor tensor_without_memory(std::int64_t count, const at::TensorOptions& options) {
  const auto bytes = static_cast<std::size_t>(count) * options.dtype().itemsize();
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes,
                       at::DataPtr(nullptr, options.device()),
                       /*allocator=*/nullptr, /*resizable=*/false);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(options.computeDispatchKey()), options.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({count});
  return tensor;
}

}  // namespace

UnitBuffer::UnitBuffer(const param::ArenaLayout& layout, param::UnitId unit,
                       const at::TensorOptions& options, param::ArenaAllocator allocate)
    : allocate_(std::move(allocate)),
      first_(layout.parameters_of(unit).front()),
      flat_(tensor_without_memory(layout.unit_range(unit).size(), options)) {
  const std::int64_t begin = layout.unit_range(unit).begin;
  for (const param::ParameterId id : layout.parameters_of(unit)) {
    const param::ElementRange range = layout.range(id);
    views_.push_back(flat_.narrow(0, range.begin - begin, range.size()).view(layout.shape(id)));
  }
}

void UnitBuffer::allocate() {
  DTRAIN_CHECK(!is_allocated());
  auto memory = std::make_unique<at::Tensor>(allocate_(static_cast<std::int64_t>(flat_.nbytes())));
  void* data = memory->mutable_data_ptr();
  set_data(at::DataPtr(
      data, memory.release(), [](void* owned) { delete static_cast<at::Tensor*>(owned); },
      flat_.device()));
}

void UnitBuffer::release() {
  if (!is_allocated()) return;
#ifndef NDEBUG
  flat_.view(at::kByte).fill_(0xFF);  // NaN in every float format
#endif
  set_data(at::DataPtr(nullptr, flat_.device()));
}

const at::Tensor& UnitBuffer::view(param::ParameterId id) const {
  return views_.at(static_cast<std::size_t>(id - first_));
}

bool UnitBuffer::is_allocated() const { return flat_.storage().data() != nullptr; }

void UnitBuffer::set_data(at::DataPtr data) {
  flat_.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(data));
}

}  // namespace dtrain::parallel
