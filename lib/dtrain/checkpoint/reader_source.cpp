#include "dtrain/checkpoint/reader_source.h"

#include <ATen/ops/empty.h>
#include <fmt/ranges.h>

#include <span>

#include "dtrain/base/error.h"
#include "dtrain/checkpoint/tensor_file.h"

namespace dtrain::checkpoint {
namespace {

std::span<std::byte> writable_bytes(const at::Tensor& tensor) {
  DTRAIN_CHECK(tensor.is_contiguous() && tensor.is_cpu());
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

}  // namespace

void ReaderSource::read(const Piece& piece) {
  const format::TensorInfo* found = reader_.find(piece.name);
  if (found == nullptr) {
    base::fail(base::ErrorKind::checkpoint, "checkpoint '{}' has no tensor '{}'", reader_.path(),
               piece.name);
  }
  if (found->shape != piece.global_shape) {
    base::fail(base::ErrorKind::checkpoint,
               "checkpoint '{}': tensor '{}' has shape ({}), this model needs ({})", reader_.path(),
               piece.name, fmt::join(found->shape, ", "), fmt::join(piece.global_shape, ", "));
  }
  const at::ScalarType type = scalar_type_of(found->dtype);
  if (type == piece.tensor.scalar_type() && piece.tensor.is_cpu()) {
    return reader_.read(piece.name, piece.box, writable_bytes(piece.tensor));
  }
  if (type != piece.tensor.scalar_type() && !at::isFloatingType(type)) {
    base::fail(base::ErrorKind::checkpoint, "checkpoint '{}': tensor '{}' holds {} values",
               reader_.path(), piece.name, format::name_of(found->dtype));
  }
  const at::Tensor values = at::empty(piece.box.sizes, at::TensorOptions().dtype(type));
  reader_.read(piece.name, piece.box, writable_bytes(values));
  at::Tensor target = piece.tensor;
  target.copy_(values);
}

}  // namespace dtrain::checkpoint
