// Generation with a GPT-2, token by token, from a cache of keys and values.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "dtrain/model/family.h"
#include "dtrain/model/gpt2/gpt2.h"
#include "dtrain/model/transformer/key_value_cache.h"
#include "dtrain/param/arena.h"

namespace dtrain::model::gpt2 {

[[nodiscard]] CacheSizes cache_sizes_of(const Gpt2Sizes& sizes);

/// Computes the same logits as the blocks in evaluation, up to rounding, with a cache in the weights'
/// dtype.
class Gpt2Generator final : public Generator {
 public:
  /// weights: in the order of parameters_of; shared, not copied, and must not change during the
  /// sequence.
  Gpt2Generator(const Gpt2Sizes& sizes, const param::Arena& weights);

  [[nodiscard]] const at::Tensor& step(std::int64_t token) override;

 private:
  [[nodiscard]] at::Tensor attend(std::size_t layer, const at::Tensor& x);
  [[nodiscard]] at::Tensor transform(const LayerParameters& ids, const at::Tensor& x) const;
  [[nodiscard]] at::Tensor normed(const WeightAndBias& ids, const at::Tensor& x) const;
  [[nodiscard]] at::Tensor to_stream(const at::Tensor& x, const WeightAndBias& map) const;
  [[nodiscard]] const at::Tensor& read(param::ParameterId id) const {
    return weights_[static_cast<std::size_t>(id.value())];
  }
  [[nodiscard]] std::optional<at::Tensor> bias_of(const WeightAndBias& ids) const {
    return ids.bias ? std::optional(read(*ids.bias)) : std::nullopt;
  }

  Gpt2Sizes sizes_;
  Gpt2Parameters parameters_;
  std::vector<at::Tensor> weights_;
  KeyValueCache cache_;
  at::Tensor logits_;  // (V)
};

}  // namespace dtrain::model::gpt2
