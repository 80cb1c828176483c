#include "dtrain/checkpoint/tensor_file.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/checkpoint/format/box.h"

namespace dtrain::checkpoint {
namespace {

using format::Dtype;

// Indexed by Dtype.
constexpr std::array kScalarTypes{at::kBool,   at::kByte,     at::kChar,   at::kUInt16, at::kShort,
                                  at::kHalf,   at::kBFloat16, at::kUInt32, at::kInt,    at::kFloat,
                                  at::kUInt64, at::kLong,     at::kDouble};

}  // namespace

at::ScalarType scalar_type_of(Dtype dtype) {
  return kScalarTypes.at(static_cast<std::size_t>(dtype));
}

Dtype dtype_of(at::ScalarType type) {
  const auto* const found = std::ranges::find(kScalarTypes, type);
  if (found != kScalarTypes.end()) return static_cast<Dtype>(found - kScalarTypes.begin());
  base::fail(base::ErrorKind::internal, "safetensors files have no dtype for {}",
             c10::toString(type));
}

at::Tensor to_tensor(const format::TensorView& view) {
  const std::int64_t count = std::ssize(view.bytes) / format::size_of(view.dtype);
  const at::Tensor values =
      at::empty({count}, at::TensorOptions().dtype(scalar_type_of(view.dtype)));
  DTRAIN_CHECK(values.nbytes() == view.bytes.size());
  // Foreign files may not align their tensors, so a view of the mapping is not always possible.
  if (!view.bytes.empty()) {
    std::memcpy(values.mutable_data_ptr(), view.bytes.data(), view.bytes.size());
  }
  if (view.strides.empty()) return values.view(view.shape);
  return values.as_strided(view.shape, view.strides).contiguous();
}

at::Tensor mapped_tensor(const format::TensorView& view) {
  const auto address = reinterpret_cast<std::uintptr_t>(view.bytes.data());
  const auto alignment = static_cast<std::uintptr_t>(format::size_of(view.dtype));
  if (view.bytes.empty() || address % alignment != 0) return to_tensor(view);
  void* const data = const_cast<std::byte*>(view.bytes.data());  // LibTorch has no read-only views
  const auto options = at::TensorOptions().dtype(scalar_type_of(view.dtype));
  if (view.strides.empty()) return at::from_blob(data, view.shape, options);
  return at::from_blob(data, view.shape, view.strides, options);
}

TensorFileWriter::TensorFileWriter(const std::string& path, std::span<const TensorSpec> tensors,
                                   const format::Metadata& metadata)
    : file_(path, base::ErrorKind::checkpoint), metadata_(metadata) {
  for (const TensorSpec& tensor : tensors) {
    const Dtype dtype = dtype_of(tensor.dtype);
    const auto bytes = static_cast<std::size_t>(format::bytes_of(dtype, tensor.shape).value());
    tensors_.push_back({.name = tensor.name,
                        .dtype = dtype,
                        .shape = tensor.shape,
                        .bytes = {static_cast<const std::byte*>(nullptr), bytes}});  // size only
  }
  metadata_[format::kChecksumKey] = format::kBlankChecksum;
  format::FilePlan plan = format::plan_safetensors(tensors_, metadata_);
  order_ = std::move(plan.order);
  checksum_at_ = format::find_checksum(plan.header);
  file_.write(std::as_bytes(std::span(plan.header)));
}

void TensorFileWriter::write(const at::Tensor& tensor) {
  const at::Tensor rows = tensor.detach().cpu().contiguous();
  const std::span bytes(static_cast<const std::byte*>(rows.const_data_ptr()), rows.nbytes());
  DTRAIN_CHECK(next_ < order_.size());
  file_.write(bytes);
  checksum_.add(tensors_[order_[next_]], bytes);
  ++next_;
}

void TensorFileWriter::commit() {
  const std::string checksum = checksum_.text(metadata_);
  file_.rewrite(static_cast<std::int64_t>(checksum_at_), std::as_bytes(std::span(checksum)));
  file_.commit();
}

}  // namespace dtrain::checkpoint
