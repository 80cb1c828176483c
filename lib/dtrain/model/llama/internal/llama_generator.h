// Generation with a Llama, token by token, from a cache of keys and values.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "dtrain/model/family.h"
#include "dtrain/model/llama/internal/operations.h"
#include "dtrain/model/llama/llama.h"
#include "dtrain/param/arena.h"

namespace dtrain::model::llama {

/// Returns the positions for which the caches have room once the sequence has `positions`.
[[nodiscard]] std::int64_t cache_capacity(std::int64_t positions, std::int64_t max_positions);

/// Computes the same logits as the blocks in evaluation, up to rounding. The cache grows with the
/// sequence: 2 * L * K * d values per position, in the weights' dtype, where L is the number of
/// layers, K the number of key-value heads and d their size.
class LlamaGenerator final : public Generator {
 public:
  /// max_positions: the maximum sequence length. weights: in the order of parameters_of; shared,
  /// not copied, and must not change during the sequence.
  LlamaGenerator(const LlamaSizes& sizes, std::int64_t max_positions, const param::Arena& weights);

  /// Computes the prompt in chunks of positions, which bounds the size of the scores.
  [[nodiscard]] const at::Tensor& read_prompt(std::span<const std::int64_t> tokens) override;
  [[nodiscard]] const at::Tensor& step(std::int64_t token) override;

 private:
  struct Cache {
    at::Tensor keys;    // (K, capacity, d)
    at::Tensor values;  // (K, capacity, d)
  };

  void check_tokens(std::span<const std::int64_t> tokens) const;
  void reserve(std::int64_t positions);
  [[nodiscard]] at::Tensor run(at::Tensor x, std::int64_t count);
  [[nodiscard]] const at::Tensor& predict(const at::Tensor& x);
  [[nodiscard]] at::Tensor attend(const LayerParameters& ids, Cache& cache, const at::Tensor& x);
  [[nodiscard]] at::Tensor transform(const LayerParameters& ids, const at::Tensor& x) const;
  [[nodiscard]] const at::Tensor& read(param::ParameterId id) const {
    return weights_[static_cast<std::size_t>(id.value())];
  }
  [[nodiscard]] at::Tensor project(const at::Tensor& x, param::ParameterId weight,
                                   const std::optional<param::ParameterId>& bias) const;
  [[nodiscard]] at::Tensor positioned(const at::Tensor& heads,
                                      const std::optional<param::ParameterId>& norm) const;

  LlamaSizes sizes_;
  std::int64_t max_positions_;
  LlamaParameters parameters_;
  std::vector<at::Tensor> weights_;
  at::Tensor frequencies_;  // (d/2)
  std::vector<Cache> caches_;
  std::int64_t capacity_ = 0;  // positions for which the caches have room
  std::int64_t position_ = 0;  // of the next token
  RotaryTable table_;          // of the positions being computed
  at::Tensor mask_;            // (C, position_ + C): 0, or -infinity for later positions
  at::Tensor logits_;          // (V)
};

}  // namespace dtrain::model::llama
