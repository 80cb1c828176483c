#include "dtrain/checkpoint/tensor_file.h"

#include <ATen/ops/empty.h>

#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "dtrain/base/check.h"

namespace dtrain::checkpoint {
namespace {

using format::Dtype;

constexpr std::array<std::pair<Dtype, at::ScalarType>, 13> kScalarTypes{
    {{Dtype::boolean, at::kBool},
     {Dtype::u8, at::kByte},
     {Dtype::i8, at::kChar},
     {Dtype::u16, at::kUInt16},
     {Dtype::i16, at::kShort},
     {Dtype::f16, at::kHalf},
     {Dtype::bf16, at::kBFloat16},
     {Dtype::u32, at::kUInt32},
     {Dtype::i32, at::kInt},
     {Dtype::f32, at::kFloat},
     {Dtype::u64, at::kUInt64},
     {Dtype::i64, at::kLong},
     {Dtype::f64, at::kDouble}}};

}  // namespace

at::ScalarType scalar_type_of(Dtype dtype) {
  for (const auto& [candidate, type] : kScalarTypes) {
    if (candidate == dtype) return type;
  }
  base::fail(base::ErrorKind::internal, "no tensor type for {}", format::name_of(dtype));
}

Dtype dtype_of(at::ScalarType type) {
  for (const auto& [dtype, candidate] : kScalarTypes) {
    if (candidate == type) return dtype;
  }
  base::fail(base::ErrorKind::internal, "safetensors files have no dtype for {}",
             c10::toString(type));
}

at::Tensor to_tensor(const format::TensorView& view) {
  at::Tensor result = at::empty(view.shape, at::TensorOptions().dtype(scalar_type_of(view.dtype)));
  DTRAIN_CHECK(result.nbytes() == view.bytes.size());
  // Foreign files do not align their tensors, so a view of the mapping would not always do.
  if (!view.bytes.empty()) {
    std::memcpy(result.mutable_data_ptr(), view.bytes.data(), view.bytes.size());
  }
  return result;
}

void write_tensor_file(const std::string& path, std::span<const NamedTensor> tensors,
                       const format::Metadata& metadata) {
  std::vector<at::Tensor> rows;  // keep the row-major copies alive until they are written
  std::vector<format::TensorView> views;
  for (const NamedTensor& tensor : tensors) {
    rows.push_back(tensor.value.detach().contiguous());
    const auto* data = static_cast<const std::byte*>(rows.back().const_data_ptr());
    views.push_back({.name = tensor.name,
                     .dtype = dtype_of(tensor.value.scalar_type()),
                     .shape = rows.back().sizes().vec(),
                     .bytes = {data, rows.back().nbytes()}});
  }
  format::write_safetensors(path, views, metadata);
}

}  // namespace dtrain::checkpoint
