// Rotary positions (RoPE) of Llamas.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "dtrain/config/llama/settings.h"
#include "dtrain/model/transformer/row_operations.h"

namespace dtrain::model::llama {

/// RoPE's frequencies in radians per position, (d/2) float32, computed in float32 as transformers
/// does: theta^(-2i/d), scaled as `rope` says.
[[nodiscard]] at::Tensor rotary_frequencies(const config::llama::RopeSettings& rope,
                                            std::int64_t head_dim);

/// Returns the angles of positions [begin, end).
[[nodiscard]] RotaryTable rotary_table(const at::Tensor& frequencies, std::int64_t begin,
                                       std::int64_t end, const at::TensorOptions& options);

/// Caches the table for positions [0, T) for all layers and steps.
///
/// Threads: one model, one thread.
class RotaryTables {
 public:
  RotaryTables(const config::llama::RopeSettings& rope, std::int64_t head_dim)
      : rope_(rope), head_dim_(head_dim) {}

  [[nodiscard]] const RotaryTable& table(std::int64_t length, const at::TensorOptions& options);

 private:
  config::llama::RopeSettings rope_;
  std::int64_t head_dim_;
  RotaryTable table_;
};

}  // namespace dtrain::model::llama
