// Generation with a Llama from a cache of keys and values.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "dtrain/model/llama/internal/rotary.h"
#include "dtrain/model/llama/llama.h"
#include "dtrain/model/transformer/cached_generator.h"

namespace dtrain::model::llama {

[[nodiscard]] CacheSizes cache_sizes_of(const LlamaSizes& sizes, std::int64_t max_positions);

/// A Llama's generator.
class LlamaGenerator final : public CachedGenerator {
 public:
  /// max_positions: the maximum sequence length. weights: in the order of parameters_of; shared,
  /// not copied, and must not change during the sequence.
  LlamaGenerator(const LlamaSizes& sizes, std::int64_t max_positions, const param::Arena& weights);

 private:
  [[nodiscard]] at::Tensor embed(const at::Tensor& ids, std::int64_t first) override;
  [[nodiscard]] at::Tensor apply_layer(std::size_t layer, const at::Tensor& x) override;
  [[nodiscard]] at::Tensor predict(const at::Tensor& x) override;

  [[nodiscard]] at::Tensor attend(std::size_t layer, const at::Tensor& x);
  [[nodiscard]] at::Tensor transform(const LayerParameters& ids, const at::Tensor& x) const;
  [[nodiscard]] at::Tensor project(const at::Tensor& x, param::ParameterId weight,
                                   const std::optional<param::ParameterId>& bias) const;
  [[nodiscard]] at::Tensor positioned(const at::Tensor& heads,
                                      const std::optional<param::ParameterId>& norm) const;

  LlamaSizes sizes_;
  LlamaParameters parameters_;
  at::Tensor frequencies_;  // (d/2)
  RotaryTable table_;       // of the positions being computed
  const RowOperations& rows_ = row_operations(config::Kernels::plain);
};

}  // namespace dtrain::model::llama
