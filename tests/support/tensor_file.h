// Writes tensors from memory to one file.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "dtrain/checkpoint/tensor_file.h"

namespace dtrain::testing {

inline void write_tensor_file(const std::string& path,
                              std::span<const checkpoint::NamedTensor> tensors,
                              const checkpoint::format::Metadata& metadata = {}) {
  std::vector<checkpoint::TensorSpec> specs;
  for (const checkpoint::NamedTensor& tensor : tensors) {
    specs.push_back({tensor.name, tensor.value.scalar_type(), tensor.value.sizes().vec()});
  }
  checkpoint::TensorFileWriter writer(path, specs, metadata);
  for (const std::size_t index : writer.order()) writer.write(tensors[index].value);
  writer.commit();
}

}  // namespace dtrain::testing
