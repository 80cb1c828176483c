// The blocks of BDH as plain ATen operations; docs/guide/model.md has the equations and symbols.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "dtrain/model/bdh/bdh.h"
#include "dtrain/model/bdh/internal/bdh_partition.h"
#include "dtrain/model/bdh/internal/chunked_attention.h"
#include "dtrain/model/bdh/internal/rope.h"
#include "dtrain/model/model.h"

namespace dtrain::model::bdh {

/// LayerNorm over the last dim without weights, eps 1e-5; statistics are float32 for bfloat16 and
/// float16.
[[nodiscard]] at::Tensor layer_norm(const at::Tensor& x);

/// ids (B, T) -> LN(embed[ids]) (B, T, D). Reports act.embed.
class BdhEmbedding : public Block {
 public:
  BdhEmbedding(const BdhSlice& slice, param::ParameterId embed) : slice_(slice), ids_{embed} {}
  [[nodiscard]] at::Tensor forward(const at::Tensor& ids, const BlockContext& context) override;
  [[nodiscard]] std::span<const param::ParameterId> parameters() const override { return ids_; }
  [[nodiscard]] BlockMemory memory(const BatchShape& shape) const override;

 private:
  BdhSlice slice_;
  std::array<param::ParameterId, 1> ids_;
};

/// x (B, T, D) -> LN(x + LN(decoded)) (B, T, D). Reports act.layerK.ykv (B, nh, T, D) for this
/// rank's heads, act.layerK.ymlp and act.layerK.out (B, T, D). span: attention chunk size in
/// positions; 0: full attention.
class BdhLevel : public Block {
 public:
  BdhLevel(const BdhSlice& slice, std::int64_t level, LevelParameters ids,
           std::shared_ptr<RopeTables> rope, std::int64_t span)
      : slice_(slice),
        level_(level),
        ids_{ids.encoder, ids.encoder_v, ids.decoder},
        rope_(std::move(rope)),
        span_(span) {}
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const BlockContext& context) override;
  [[nodiscard]] std::span<const param::ParameterId> parameters() const override { return ids_; }
  [[nodiscard]] BlockMemory memory(const BatchShape& shape) const override;

 private:
  [[nodiscard]] at::Tensor attend(const at::Tensor& x, const at::Tensor& xs,
                                  const BlockContext& context) const;
  [[nodiscard]] ChunkWork work_of(const BatchShape& shape) const;
  [[nodiscard]] at::Tensor gate(const at::Tensor& xs, const at::Tensor& ys, std::int64_t batch,
                                const BlockContext& context) const;

  BdhSlice slice_;
  std::int64_t level_;
  std::array<param::ParameterId, 3> ids_;
  std::shared_ptr<RopeTables> rope_;
  std::int64_t span_;
};

/// x (B, T, D), targets (B, T) -> losses (B, T) in nats. Reports logits (B, T, V), or only this
/// rank's columns if the vocabulary is split.
class BdhHead : public Block {
 public:
  BdhHead(const BdhSlice& slice, param::ParameterId lm_head) : slice_(slice), ids_{lm_head} {}
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const BlockContext& context) override;
  [[nodiscard]] std::span<const param::ParameterId> parameters() const override { return ids_; }
  [[nodiscard]] BlockMemory memory(const BatchShape& shape) const override;

 private:
  [[nodiscard]] at::Tensor logits(const at::Tensor& x, const BlockContext& context) const;

  BdhSlice slice_;
  std::array<param::ParameterId, 1> ids_;
};

}  // namespace dtrain::model::bdh
