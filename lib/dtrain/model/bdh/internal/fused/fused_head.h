// The output head of BDH on the CPU with a fused backward pass; requires an unsplit vocabulary.
#pragma once

#include <array>
#include <cstdint>

#include "dtrain/model/bdh/internal/bdh_partition.h"
#include "dtrain/model/model.h"

namespace dtrain::model::bdh {

/// Computes the same losses as BdhHead, but never rounds logits to 16 bits. With a large vocabulary
/// it materializes the logits of a few rows at a time and recomputes them in the backward pass.
/// Results do not depend on the number of threads.
class FusedHead final : public Block, private NativeBackward {
 public:
  /// threads: the rank's number of threads; used only to predict memory.
  FusedHead(const BdhSlice& slice, param::ParameterId lm_head, std::int64_t threads)
      : slice_(slice), ids_{lm_head}, threads_(threads) {}
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

  /// Returns how many of `rows` have their logits materialized at once; wide: bytes per logit.
  [[nodiscard]] std::int64_t rows_at_once(std::int64_t rows, std::int64_t wide) const;

  BdhSlice slice_;
  std::array<param::ParameterId, 1> ids_;
  std::int64_t threads_;
};

}  // namespace dtrain::model::bdh
