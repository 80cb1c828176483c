// PowerSGD: low-rank compression of gradient matrices.
#pragma once

#include <cstdint>

#include "dtrain/parallel/compress/internal/scheme.h"

namespace dtrain::parallel {

/// Sends rank-r factors of a matrix M (rows, columns), found by one step of power iteration: with
/// the previous step's Q (columns, r), P = M Q is all-reduced and orthonormalised, then Q = M^T P
/// is all-reduced. P Q^T approximates the sum of M over ranks. P (M^T P)^T is a rank's own
/// contribution to it; the residual is M minus that contribution.
///
/// Format: P (rows, r), then Q (columns, r), in the dtype of gradients.
///
/// Every rank computes bit-identical P Q^T and orthonormal columns, independent of thread count and
/// CPU type. The initial Q is drawn from a seed that depends on the parameter's number; columns
/// that become 0 are reset to it.
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
