// AdamW over arenas: one pass for each run of parameters that decay alike.
#pragma once

#include <cstdint>
#include <vector>

#include "dtrain/optim/optimizer.h"

namespace dtrain::optim {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.1;  ///< decoupled; on parameters whose spec says decay
};

/// The rule is written out in optim/update_rules.h; it agrees with torch.optim.AdamW to rounding.
///
/// Source: Loshchilov and Hutter, Decoupled Weight Decay Regularization (ICLR 2019). Differs: loops
/// of our own, since LibTorch's fused kernel rounds the last elements of a range otherwise than the
/// others, so that an element's bits would depend on where shards end.
class AdamW final : public Optimizer {
 public:
  AdamW(const OptimizerShard& shard, const AdamWOptions& options);

  static constexpr std::int64_t kNumArenas = 2;  ///< of its state

  [[nodiscard]] std::vector<NamedArena> state() const override {
    return {{"exp_avg", &first_moment_}, {"exp_avg_sq", &second_moment_}};
  }

 private:
  void update(const UpdateGroup& group, const param::Arena& parameters,
              const param::Arena& gradients, const StepInputs& inputs) override;

  AdamWOptions options_;
  param::Arena first_moment_;
  param::Arena second_moment_;
};

}  // namespace dtrain::optim
