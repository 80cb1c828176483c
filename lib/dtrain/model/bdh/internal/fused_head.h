// The head of a BDH on the CPU with a backward pass of its own, of a vocabulary that is not split.
#pragma once

#include <array>
#include <cstdint>

#include "dtrain/model/bdh/internal/bdh_partition.h"
#include "dtrain/model/model.h"

namespace dtrain::model::bdh {

/// Computes what BdhHead computes, with logits that are never rounded to 16 bits. Those of a large
/// vocabulary exist for some rows at a time, and are computed again for the backward pass. Equal
/// bits on any number of threads.
class FusedHead final : public Block, private NativeBackward {
 public:
  /// threads: of the rank, for the prediction of memory.
  FusedHead(const BdhSlice& part, param::ParameterId lm_head, std::int64_t threads)
      : part_(part), ids_{lm_head}, threads_(threads) {}
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

  /// Of `rows`, how many have their logits at once; wide: bytes of a logit.
  [[nodiscard]] std::int64_t rows_at_once(std::int64_t rows, std::int64_t wide) const;

  BdhSlice part_;
  std::array<param::ParameterId, 1> ids_;
  std::int64_t threads_;
};

}  // namespace dtrain::model::bdh
