// PowerSGD: low-rank compression of gradient matrices.
#pragma once

#include <cstdint>

#include "dtrain/parallel/compress/internal/scheme.h"

namespace dtrain::parallel {

/// Sends factors of rank r of a matrix M (rows, columns), by one step of power iteration: with the
/// Q (columns, r) of the step before, P = M Q is added over the ranks and made orthonormal, then
/// Q = M^T P is added over the ranks. The sum of M is taken to be P Q^T, and P (M^T P)^T is what a
/// rank has sent of its own.
///
/// Format: P (rows, r), then Q (columns, r), in the dtype of gradients.
///
/// Every rank computes P Q^T and orthonormal columns with the same bits, whatever its threads and
/// its CPU. The first Q is drawn from the parameter's number; so is a column that has become 0.
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
  void keep() override;
  [[nodiscard]] at::Tensor factor() const override { return right_; }

 private:
  comm::ProcessGroup& group_;
  at::Tensor first_;       // (columns, r): the first right_
  at::Tensor left_;        // P
  at::Tensor right_;       // Q of the last step that was kept
  at::Tensor next_right_;  // of this one
  at::Tensor matrix_;      // M; of begin()
  comm::Work work_;
};

}  // namespace dtrain::parallel
