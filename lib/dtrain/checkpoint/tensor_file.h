// Tensors to and from safetensors files; checkpoint/format knows the bytes, this knows LibTorch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dtrain/base/io/file_system.h"
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

/// A tensor's name, shape and dtype, known before its values.
struct TensorSpec {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> shape;
};

/// Writes a file a tensor at a time, so that no more than one need be in memory, with a checksum in
/// its metadata (format/safetensors.h). Without commit() nothing is left.
///
/// Throws:  Error{checkpoint} naming the file if it cannot be written; Error{internal} for a dtype
///          that the format lacks or a name given twice.
/// Threads: one caller.
class TensorFileWriter {
 public:
  TensorFileWriter(const std::string& path, std::span<const TensorSpec> tensors,
                   const format::Metadata& metadata);

  /// Which of the tensors comes when: that of the specs, those of wider dtypes first.
  [[nodiscard]] std::span<const std::size_t> order() const { return order_; }
  /// The next tensor in that order, of any strides.
  void write(const at::Tensor& tensor);
  void commit();

 private:
  base::AtomicFile file_;
  std::vector<format::TensorView> tensors_;  // without their bytes
  format::Metadata metadata_;
  std::vector<std::size_t> order_;
  std::size_t next_ = 0;  // in that order
  format::ContentChecksum checksum_;
  std::size_t checksum_at_ = 0;  // in the file
};

}  // namespace dtrain::checkpoint
