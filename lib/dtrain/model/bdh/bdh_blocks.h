// The blocks of a BDH in plain ATen operations. docs/model.md gives the equations and letters.
#pragma once

#include <array>
#include <memory>

#include "dtrain/model/bdh/bdh.h"
#include "dtrain/model/bdh/rope.h"
#include "dtrain/model/model.h"

namespace dtrain::model::bdh {

/// LayerNorm over the last dim without weights, eps 1e-5; statistics of bfloat16 and float16 are
/// float32.
[[nodiscard]] at::Tensor layer_norm(const at::Tensor& x);

/// bfloat16 and float16 -> float32; others as they are.
[[nodiscard]] at::Tensor widened(const at::Tensor& x);

/// ids (B, T) -> LN(embed[ids]) (B, T, D). Reports act.embed.
class BdhEmbedding : public Block {
 public:
  BdhEmbedding(const BdhSizes& sizes, param::ParameterId embed) : sizes_(sizes), ids_{embed} {}
  [[nodiscard]] at::Tensor forward(const at::Tensor& ids, const BlockContext& context) override;
  [[nodiscard]] std::span<const param::ParameterId> parameters() const override { return ids_; }
  [[nodiscard]] BlockMemory memory(const BatchShape& shape) const override;

 private:
  BdhSizes sizes_;
  std::array<param::ParameterId, 1> ids_;
};

/// x (B, T, D) -> LN(x + LN(decoded)) (B, T, D). Reports act.layerK.ykv (B, nh, T, D),
/// act.layerK.ymlp and act.layerK.out (B, T, D).
class BdhLevel : public Block {
 public:
  BdhLevel(const BdhSizes& sizes, std::int64_t level, LevelParameters ids,
           std::shared_ptr<RopeTables> rope)
      : sizes_(sizes),
        level_(level),
        ids_{ids.encoder, ids.encoder_v, ids.decoder},
        rope_(std::move(rope)) {}
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const BlockContext& context) override;
  [[nodiscard]] std::span<const param::ParameterId> parameters() const override { return ids_; }
  [[nodiscard]] BlockMemory memory(const BatchShape& shape) const override;

 private:
  [[nodiscard]] at::Tensor attend(const at::Tensor& x, const at::Tensor& xs,
                                  const BlockContext& context) const;

  BdhSizes sizes_;
  std::int64_t level_;
  std::array<param::ParameterId, 3> ids_;
  std::shared_ptr<RopeTables> rope_;
};

/// x (B, T, D), targets (B, T) -> losses (B, T) in nats. Reports logits (B, T, V).
class BdhHead : public Block {
 public:
  BdhHead(const BdhSizes& sizes, param::ParameterId lm_head) : sizes_(sizes), ids_{lm_head} {}
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const BlockContext& context) override;
  [[nodiscard]] std::span<const param::ParameterId> parameters() const override { return ids_; }
  [[nodiscard]] BlockMemory memory(const BatchShape& shape) const override;

 private:
  BdhSizes sizes_;
  std::array<param::ParameterId, 1> ids_;
};

}  // namespace dtrain::model::bdh
