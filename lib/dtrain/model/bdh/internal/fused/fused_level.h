// A BDH layer (level) on the CPU with a fused backward pass. Of the activations with one value per
// neuron it materializes only xs and ys; it computes only the causal half of the scores.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "dtrain/model/bdh/bdh.h"
#include "dtrain/model/bdh/internal/bdh_partition.h"
#include "dtrain/model/bdh/internal/fused/fused_gate.h"
#include "dtrain/model/bdh/internal/rope.h"
#include "dtrain/model/model.h"

namespace dtrain::model::bdh {

/// Computes and reports the same values as BdhLevel, in float32, float64 or bfloat16. Results do
/// not depend on the number of threads.
class FusedLevel final : public Block, private NativeBackward {
 public:
  struct Options {
    std::int64_t span = 0;          ///< positions per span (FusedAttention); 0: the whole sequence
    bool recomputes_gates = false;  ///< recompute xs and ys in the backward pass
    std::int64_t threads = 1;       ///< threads of the rank; used only to predict memory
  };

  FusedLevel(const BdhSlice& slice, std::int64_t level, LevelParameters ids,
             std::shared_ptr<RopeTables> rope, Options options)
      : slice_(slice),
        level_(level),
        ids_{ids.encoder, ids.encoder_v, ids.decoder},
        rope_(std::move(rope)),
        options_(options) {}
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const BlockContext& context) override;
  [[nodiscard]] NativeBackward* native_backward() override { return this; }
  [[nodiscard]] std::span<const param::ParameterId> parameters() const override { return ids_; }
  [[nodiscard]] BlockMemory memory(const BatchShape& shape) const override;

 private:
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const BlockContext& context,
                                   std::vector<at::Tensor>& saved) override;
  [[nodiscard]] at::Tensor backward(const at::Tensor& x, const at::Tensor& gradient,
                                    std::span<const at::Tensor> saved, const BlockContext& context,
                                    const GradientOf& gradient_of) override;
  template <typename S>
  [[nodiscard]] at::Tensor run(const at::Tensor& x, const BlockContext& context,
                               std::vector<at::Tensor>* saved);
  template <typename S>
  [[nodiscard]] at::Tensor run_backward(const at::Tensor& x, const at::Tensor& gradient,
                                        std::span<const at::Tensor> saved,
                                        const BlockContext& context, const GradientOf& gradient_of);
  template <typename S>
  struct Passes;
  [[nodiscard]] FusedShape shape_of(std::int64_t batch, std::int64_t length) const;
  [[nodiscard]] FusedDropout dropout_of(const BlockContext& context) const;

  BdhSlice slice_;
  std::int64_t level_;
  std::array<param::ParameterId, 3> ids_;
  std::shared_ptr<RopeTables> rope_;
  Options options_;
};

}  // namespace dtrain::model::bdh
