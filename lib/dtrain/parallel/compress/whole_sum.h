// Sums uncompressed gradients over ranks.
#pragma once

#include <vector>

#include "dtrain/parallel/compress/rank_sum.h"

namespace dtrain::parallel {

/// Sums in the form of a codec, each range by one call.
class WholeSum final : public RankSum {
 public:
  WholeSum(comm::ProcessGroup& group, std::shared_ptr<const GradientCodec> codec)
      : group_(group), codec_(std::move(codec)) {}

  void begin_step(const StepTerms&) override { travels_.clear(); }
  void begin(param::ElementRange, const at::Tensor& gradients) override { begin(gradients); }
  void begin(const at::Tensor& gradients);
  void finish() override;
  void end_step(bool) override {}

 private:
  struct Travel {
    at::Tensor gradients;  // where they belong
    at::Tensor sent;       // the same tensor, or encoded
    comm::Work work;
  };

  comm::ProcessGroup& group_;
  std::shared_ptr<const GradientCodec> codec_;
  std::vector<Travel> travels_;
};

}  // namespace dtrain::parallel
