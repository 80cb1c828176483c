// PowerSGD: low-rank compression of gradient matrices.
#pragma once

#include <cstdint>

#include "dtrain/parallel/compress/internal/scheme.h"

namespace dtrain::parallel {

/// Approximates a matrix M (rows, columns) by rank-r factors from one step of power iteration. With
/// the previous step's Q (columns, r), P = M Q is all-reduced and orthonormalised; then Q = M^T P
/// is all-reduced. P Q^T approximates the sum of M over ranks. This rank contributes P (M^T P)^T to
/// it; the residual is M minus this contribution.
///
/// Format: P (rows, r), then Q (columns, r), in the dtype of gradients.
///
/// Every rank computes bit-identical P Q^T and orthonormal columns, independent of thread count and
/// CPU type. The initial Q is random, with a seed that depends on the parameter's id; columns of Q
/// that become 0 are reset to their initial values.
///
/// Source: Vogels, Karimireddy, Jaggi, PowerSGD (NeurIPS 2019), algorithms 1 and 2.
class PowerSgd final : public Scheme {
 public:
  PowerSgd(const GradientPart& part, std::int64_t rank, comm::ProcessGroup& group,
           at::ScalarType dtype, const param::ArenaAllocator& allocate);

  [[nodiscard]] static SchemeCosts costs(const GradientPart& part, std::int64_t rank,
                                         std::int64_t num_ranks, at::ScalarType dtype);

  void begin(const at::Tensor& values) override;
  void advance() override;
  void finish(const at::Tensor& sum) override;
  void commit() override;
  [[nodiscard]] at::Tensor factor() const override { return right_; }

 private:
  comm::ProcessGroup& group_;
  at::Tensor first_;       // (columns, r): initial value of right_
  at::Tensor left_;        // P
  at::Tensor right_;       // Q of the last committed step
  at::Tensor next_right_;  // Q of this step
  at::Tensor matrix_;      // M, from begin() to advance()
  comm::Work work_;
};

}  // namespace dtrain::parallel
