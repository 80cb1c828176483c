// Generation with a transformer from a cache of keys and values.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "dtrain/model/family.h"
#include "dtrain/model/transformer/key_value_cache.h"
#include "dtrain/param/arena.h"

namespace dtrain::model {

/// Computes the same logits as a family's blocks in evaluation, up to rounding, with a cache in the
/// weights' dtype. Computes a prompt in chunks of positions, which bounds the size of the scores.
class CachedGenerator : public Generator {
 public:
  [[nodiscard]] const at::Tensor& read_prompt(std::span<const std::int64_t> tokens) final;
  [[nodiscard]] const at::Tensor& step(std::int64_t token) final;

  /// As Family::prompt_bytes: the temporaries of the attention of a chunk that ends the prompt.
  [[nodiscard]] static std::int64_t prompt_bytes(const config::ModelConfig& config,
                                                 at::ScalarType dtype, std::int64_t prompt);

 protected:
  /// weights: of the whole model; shared, not copied, and must not change during the sequence.
  CachedGenerator(const CacheSizes& sizes, std::int64_t vocab, const param::Arena& weights);

  [[nodiscard]] const at::Tensor& read(param::ParameterId id) const {
    return weights_[static_cast<std::size_t>(id.value())];
  }
  [[nodiscard]] KeyValueCache& cache() { return cache_; }

 private:
  /// Returns the input of the first layer for the tokens at C positions from `first` on.
  ///
  /// Shapes: ids (C) int64, or () for one token; returns (C, D), or (D).
  [[nodiscard]] virtual at::Tensor embed(const at::Tensor& ids, std::int64_t first) = 0;
  /// Returns a layer's output for these positions, to which the cache belongs.
  ///
  /// Shapes: x (C, D) or (D); returns the same.
  [[nodiscard]] virtual at::Tensor apply_layer(std::size_t layer, const at::Tensor& x) = 0;
  /// Returns the logits (V) of a token's successor from the last layer's output x (D).
  [[nodiscard]] virtual at::Tensor predict(const at::Tensor& x) = 0;

  void check_token(std::int64_t token) const;
  [[nodiscard]] at::Tensor run(const at::Tensor& ids);

  std::int64_t layers_;
  std::int64_t vocab_;
  std::vector<at::Tensor> weights_;
  KeyValueCache cache_;
  at::Tensor logits_;  // (V)
};

}  // namespace dtrain::model
