// Reads and writes LibTorch tensors in safetensors files, using checkpoint/format.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dtrain/base/io/file_system.h"
#include "dtrain/checkpoint/format/safetensors.h"

namespace dtrain::checkpoint {

/// A tensor and its name in a file.
struct NamedTensor {
  std::string name;
  at::Tensor value;
};

/// Returns LibTorch's dtype for a file's dtype.
[[nodiscard]] at::ScalarType scalar_type_of(format::Dtype dtype);

/// Returns the file's dtype for LibTorch's dtype.
///
/// Throws: Error{internal} for a dtype that the format lacks.
[[nodiscard]] format::Dtype dtype_of(at::ScalarType type);

/// Copies a file's tensor into a new contiguous CPU tensor; the file may be closed afterwards.
[[nodiscard]] at::Tensor to_tensor(const format::TensorView& view);

/// Returns a file's tensor as a read-only view of the mapped file, which must stay open; a copy if
/// the file does not align it to its elements.
[[nodiscard]] at::Tensor mapped_tensor(const format::TensorView& view);

/// A tensor's name, shape and dtype, without its values.
struct TensorSpec {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> shape;
};

/// Writes a file with a checksum in its metadata (format/safetensors.h), one tensor at a time, so
/// that only one needs to be in memory. The file appears only with commit().
///
/// Throws:  Error{checkpoint} naming the file if it cannot be written; Error{internal} for a dtype
///          that the format lacks or a name given twice.
/// Threads: one caller.
class TensorFileWriter {
 public:
  TensorFileWriter(const std::string& path, std::span<const TensorSpec> tensors,
                   const format::Metadata& metadata);

  /// The order in which to write the tensors, as indices in `tensors`: wider dtypes first.
  [[nodiscard]] std::span<const std::size_t> order() const { return order_; }
  /// Writes the next tensor in that order, with any strides.
  void write(const at::Tensor& tensor);
  void commit();

 private:
  base::AtomicFile file_;
  std::vector<format::TensorView> tensors_;  // without their bytes
  format::Metadata metadata_;
  std::vector<std::size_t> order_;
  std::size_t next_ = 0;  // index in order_
  format::ContentChecksum checksum_;
  std::size_t checksum_at_ = 0;  // byte offset in the file
};

}  // namespace dtrain::checkpoint
