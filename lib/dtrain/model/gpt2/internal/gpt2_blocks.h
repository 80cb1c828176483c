// The blocks of a GPT-2.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dtrain/model/gpt2/gpt2.h"
#include "dtrain/model/model.h"
#include "dtrain/model/transformer/row_operations.h"

namespace dtrain::model::gpt2 {

/// ids (B, T) -> tokens[ids] + positions[0..T) (B, T, D). Reports act.embed (BlockContext::report).
class Gpt2Embedding final : public Block {
 public:
  Gpt2Embedding(const Gpt2Slice& slice, param::ParameterId tokens, param::ParameterId positions)
      : slice_(slice), ids_{tokens, positions} {}
  [[nodiscard]] at::Tensor forward(const at::Tensor& ids, const BlockContext& context) override;
  [[nodiscard]] std::span<const param::ParameterId> parameters() const override { return ids_; }
  [[nodiscard]] BlockMemory memory(const BatchShape& shape) const override;

 private:
  Gpt2Slice slice_;
  std::vector<param::ParameterId> ids_;
};

/// x (B, T, D) -> h + MLP(norm(h)) with h = x + attention(norm(x)), (B, T, D). Reports
/// act.layerK.out.
class Gpt2Layer final : public Block {
 public:
  Gpt2Layer(const Gpt2Slice& slice, std::int64_t layer, const LayerParameters& ids,
            const RowOperations& rows);
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const BlockContext& context) override;
  [[nodiscard]] std::span<const param::ParameterId> parameters() const override { return all_; }
  [[nodiscard]] BlockMemory memory(const BatchShape& shape) const override;

 private:
  [[nodiscard]] at::Tensor attend(const at::Tensor& x, const BlockContext& context) const;
  [[nodiscard]] at::Tensor transform(const at::Tensor& x, const BlockContext& context) const;
  [[nodiscard]] at::Tensor split_map(const at::Tensor& x, const WeightAndBias& map,
                                     const BlockContext& context) const;
  [[nodiscard]] at::Tensor to_stream(const at::Tensor& x, const WeightAndBias& map,
                                     const BlockContext& context) const;

  Gpt2Slice slice_;
  std::int64_t layer_;
  LayerParameters ids_;
  std::vector<param::ParameterId> all_;
  const RowOperations& rows_;
};

/// x (B, T, D) -> losses (B, T) of the tokens at norm(x) headᵀ. Reports logits (B, T, V).
class Gpt2Head final : public Block {
 public:
  Gpt2Head(const Gpt2Slice& slice, const WeightAndBias& norm, param::ParameterId head,
           const RowOperations& rows);
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const BlockContext& context) override;
  [[nodiscard]] std::span<const param::ParameterId> parameters() const override { return all_; }
  [[nodiscard]] BlockMemory memory(const BatchShape& shape) const override;

 private:
  Gpt2Slice slice_;
  WeightAndBias norm_;
  param::ParameterId head_;
  std::vector<param::ParameterId> all_;
  const RowOperations& rows_;
};

}  // namespace dtrain::model::gpt2
