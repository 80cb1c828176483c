// Generation with a GPT-2 from a cache of keys and values.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "dtrain/model/gpt2/gpt2.h"
#include "dtrain/model/transformer/cached_generator.h"

namespace dtrain::model::gpt2 {

[[nodiscard]] CacheSizes cache_sizes_of(const Gpt2Sizes& sizes);

/// A GPT-2's generator.
class Gpt2Generator final : public CachedGenerator {
 public:
  /// weights: in the order of parameters_of; shared, not copied, and must not change during the
  /// sequence.
  Gpt2Generator(const Gpt2Sizes& sizes, const param::Arena& weights);

 private:
  [[nodiscard]] at::Tensor embed(const at::Tensor& ids, std::int64_t first) override;
  [[nodiscard]] at::Tensor apply_layer(std::size_t layer, const at::Tensor& x) override;
  [[nodiscard]] at::Tensor predict(const at::Tensor& x) override;

  [[nodiscard]] at::Tensor attend(std::size_t layer, const at::Tensor& x);
  [[nodiscard]] at::Tensor transform(const LayerParameters& ids, const at::Tensor& x) const;
  [[nodiscard]] at::Tensor normed(const WeightAndBias& ids, const at::Tensor& x) const;
  [[nodiscard]] at::Tensor to_stream(const at::Tensor& x, const WeightAndBias& map) const;
  [[nodiscard]] std::optional<at::Tensor> bias_of(const WeightAndBias& ids) const {
    return ids.bias ? std::optional(read(*ids.bias)) : std::nullopt;
  }

  Gpt2Sizes sizes_;
  Gpt2Parameters parameters_;
};

}  // namespace dtrain::model::gpt2
