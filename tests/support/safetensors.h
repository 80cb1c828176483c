// Writes whole safetensors files. Does not need LibTorch.
#pragma once

#include <span>
#include <string>

#include "dtrain/base/io/file_system.h"
#include "dtrain/checkpoint/format/safetensors.h"

namespace dtrain::testing {

inline void write_safetensors(const std::string& path,
                              std::span<const checkpoint::format::TensorView> tensors,
                              const checkpoint::format::Metadata& metadata = {}) {
  const auto plan = checkpoint::format::plan_safetensors(tensors, metadata);
  base::AtomicFile file(path, base::ErrorKind::checkpoint);
  file.write(std::as_bytes(std::span(plan.header)));
  for (const std::size_t index : plan.order) file.write(tensors[index].bytes);
  file.commit();
}

}  // namespace dtrain::testing
