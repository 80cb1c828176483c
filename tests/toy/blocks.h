// The toy's blocks: an embedding, layers that see one token each, and a head.
//
//   level:  x + W_outᵀ (s ∘ dropout(relu(W_in x + b)))
#pragma once

#include <cstdint>
#include <vector>

#include "dtrain/model/model.h"

namespace dtrain::model::toy {

struct Sizes {
  std::int64_t layers = 0;
  std::int64_t width = 0;   ///< D
  std::int64_t hidden = 0;  ///< H
  std::int64_t groups = 0;  ///< G
  std::int64_t vocab = 0;   ///< V
  double dropout = 0;
  bool tie_layers = true;
};

/// The hidden units [first, first + hidden) of a rank of the tensor axis: whole groups.
struct Part {
  Sizes whole;
  std::int64_t first = 0;
  std::int64_t hidden = 0;
};

/// s (G, H/G), constant: units of group g are scaled by 1 + g/G.
[[nodiscard]] at::Tensor scales(const Sizes& sizes);

/// A block of the toy: its parameters' ids.
class ToyBlock : public Block {
 public:
  ToyBlock(const Part& part, std::vector<param::ParameterId> ids)
      : part_(part), ids_(std::move(ids)) {}
  [[nodiscard]] std::span<const param::ParameterId> parameters() const override { return ids_; }

 protected:
  Part part_;
  std::vector<param::ParameterId> ids_;
};

/// ids (B, T) -> (B, T, D).
class ToyEmbedding final : public ToyBlock {
 public:
  using ToyBlock::ToyBlock;
  [[nodiscard]] at::Tensor forward(const at::Tensor& ids, const BlockContext& context) override;
  [[nodiscard]] BlockMemory memory(const BatchShape& shape) const override;
};

/// (B, T, D) -> (B, T, D). Reports act.layerK.out.
class ToyLevel final : public ToyBlock {
 public:
  ToyLevel(const Part& part, std::int64_t level, std::vector<param::ParameterId> ids)
      : ToyBlock(part, std::move(ids)), level_(level) {}
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const BlockContext& context) override;
  [[nodiscard]] BlockMemory memory(const BatchShape& shape) const override;

 private:
  std::int64_t level_;
};

/// (B, T, D) -> losses (B, T). Reports logits (B, T, V).
class ToyHead final : public ToyBlock {
 public:
  using ToyBlock::ToyBlock;
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const BlockContext& context) override;
  [[nodiscard]] BlockMemory memory(const BatchShape& shape) const override;
};

}  // namespace dtrain::model::toy
