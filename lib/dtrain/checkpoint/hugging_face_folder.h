// Writes a model's weights as Hugging Face's folders hold them: one safetensors file, or shards with
// an index.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>

#include "dtrain/checkpoint/format/safetensors.h"
#include "dtrain/param/parameter_spec.h"

namespace dtrain::checkpoint {

struct FolderOptions {
  at::ScalarType dtype = at::kFloat;  ///< of all parameters
  /// Bytes of tensors in one file; a larger tensor has a file of its own. 0: no limit.
  std::int64_t max_file_bytes = 0;
  format::Metadata metadata = {};  ///< of every file, besides {"format": "pt"}
};

/// Writes every parameter, under its name and in its exported shape, into the existing `folder`:
/// as model.safetensors, or as model-00001-of-0000N.safetensors, ... and
/// model.safetensors.index.json. Holds one parameter at a time, or two if its exported dims are in
/// another order than in storage.
///
/// Shapes: read returns a whole parameter in storage shape, of options.dtype, on the CPU. It is
///         called in the order of `specs`.
/// Throws: Error{checkpoint} naming the file that cannot be written; whatever read throws.
void write_hugging_face_weights(const std::string& folder, const param::ParameterSpecs& specs,
                                const FolderOptions& options,
                                const std::function<at::Tensor(const param::ParameterSpec&)>& read);

}  // namespace dtrain::checkpoint
