// Tensors to and from safetensors files; checkpoint/format knows the bytes, this knows LibTorch.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <string>

#include "dtrain/checkpoint/format/safetensors.h"

namespace dtrain::checkpoint {

struct NamedTensor {
  std::string name;
  at::Tensor value;
};

/// The tensor dtype of a file's dtype.
[[nodiscard]] at::ScalarType scalar_type_of(format::Dtype dtype);

/// Throws: Error{internal} for a dtype that the format lacks.
[[nodiscard]] format::Dtype dtype_of(at::ScalarType type);

/// The values of a file's tensor as a contiguous CPU tensor of its own: the file may be closed.
[[nodiscard]] at::Tensor to_tensor(const format::TensorView& view);

/// Writes tensors of any strides as row-major values; the file appears whole or not at all.
///
/// Throws: Error{checkpoint} naming the file if it cannot be written; Error{internal} for a dtype
///         that the format lacks or a name given twice.
void write_tensor_file(const std::string& path, std::span<const NamedTensor> tensors,
                       const format::Metadata& metadata = {});

}  // namespace dtrain::checkpoint
