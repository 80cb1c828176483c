// The blocks of a Llama.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "dtrain/model/llama/internal/rotary.h"
#include "dtrain/model/llama/llama.h"
#include "dtrain/model/model.h"

namespace dtrain::model::llama {

/// ids (B, T) -> embed[ids] (B, T, D). Reports the result as act.embed (BlockContext::report).
class LlamaEmbedding final : public Block {
 public:
  LlamaEmbedding(const LlamaSlice& slice, param::ParameterId embed) : slice_(slice), ids_{embed} {}
  [[nodiscard]] at::Tensor forward(const at::Tensor& ids, const BlockContext& context) override;
  [[nodiscard]] std::span<const param::ParameterId> parameters() const override { return ids_; }
  [[nodiscard]] BlockMemory memory(const BatchShape& shape) const override;

 private:
  LlamaSlice slice_;
  std::vector<param::ParameterId> ids_;
};

/// x (B, T, D) -> h + MLP(norm(h)) with h = x + attention(norm(x)), (B, T, D). Reports
/// act.layerK.out.
class LlamaLayer final : public Block {
 public:
  LlamaLayer(const LlamaSlice& slice, std::int64_t layer, const LayerParameters& ids,
             std::shared_ptr<RotaryTables> rotary, const RowOperations& rows);
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const BlockContext& context) override;
  [[nodiscard]] std::span<const param::ParameterId> parameters() const override { return all_; }
  [[nodiscard]] BlockMemory memory(const BatchShape& shape) const override;

 private:
  // An input that is equal on all ranks, for maps that differ between ranks.
  struct Shared {
    at::Tensor x;                       // (B, T, D), a result of TensorAxis::replicated
    at::ScalarType dtype = at::kFloat;  // of the maps' results
  };

  [[nodiscard]] Shared normed(const at::Tensor& x, param::ParameterId norm,
                              const BlockContext& context) const;
  [[nodiscard]] at::Tensor project(const Shared& input, param::ParameterId weight,
                                   const std::optional<param::ParameterId>& bias,
                                   const ParameterReader& read) const;
  [[nodiscard]] at::Tensor keys_or_values(const Shared& input, param::ParameterId weight,
                                          const std::optional<param::ParameterId>& bias,
                                          const BlockContext& context) const;
  [[nodiscard]] at::Tensor positioned(const at::Tensor& heads,
                                      const std::optional<param::ParameterId>& norm,
                                      const BlockContext& context) const;
  [[nodiscard]] at::Tensor attend(const at::Tensor& x, const BlockContext& context) const;
  [[nodiscard]] at::Tensor transform(const at::Tensor& x, const BlockContext& context) const;

  LlamaSlice slice_;
  std::int64_t layer_;
  LayerParameters ids_;
  std::vector<param::ParameterId> all_;
  std::shared_ptr<RotaryTables> rotary_;
  const RowOperations& rows_;
};

/// x (B, T, D) -> losses (B, T) of the tokens at norm(x) headᵀ. Reports logits (B, T, V).
class LlamaHead final : public Block {
 public:
  LlamaHead(const LlamaSlice& slice, param::ParameterId norm, param::ParameterId head,
            const RowOperations& rows)
      : slice_(slice), ids_{norm, head}, rows_(rows) {}
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const BlockContext& context) override;
  [[nodiscard]] std::span<const param::ParameterId> parameters() const override { return ids_; }
  [[nodiscard]] BlockMemory memory(const BatchShape& shape) const override;

 private:
  LlamaSlice slice_;
  std::vector<param::ParameterId> ids_;
  const RowOperations& rows_;
};

}  // namespace dtrain::model::llama
