// AdamW and SGD over arenas: one pass for each run of parameters that decay alike. The only place
// that knows which optimizers there are.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "dtrain/optim/internal/optimizer.h"

namespace dtrain::optim {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.1;  ///< decoupled; on parameters whose spec says decay
};

/// The rule is written out in optim/internal/update_rules.h; it agrees with torch.optim.AdamW to rounding.
///
/// Source: Loshchilov and Hutter, Decoupled Weight Decay Regularization (ICLR 2019). Differs: loops
/// of our own, since LibTorch's fused kernel rounds the last elements of a range otherwise than the
/// others, so that an element's bits would depend on where shards end.
class AdamW final : public Optimizer {
 public:
  AdamW(const OptimizerShard& shard, const AdamWOptions& options);

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

struct SgdOptions {
  double momentum = 0.9;      ///< 0: none, and nothing is kept for it
  double weight_decay = 0.1;  ///< added to the gradient, as torch.optim.SGD does
};

/// buffer = momentum * buffer + gradient; parameter -= learning rate * buffer. The buffer begins at
/// zero, so that the first update is like the others.
///
/// Source: Sutskever et al., On the importance of initialization and momentum (ICML 2013), in the
/// form of torch.optim.SGD without dampening. Differs: loops of our own (optim/internal/update_rules.h), for
/// the reason that AdamW gives.
class Sgd final : public Optimizer {
 public:
  Sgd(const OptimizerShard& shard, const SgdOptions& options);

  [[nodiscard]] std::vector<NamedArena> state() const override;

 private:
  void update(const UpdateGroup& group, const param::Arena& parameters,
              const param::Arena& gradients, const StepInputs& inputs) override;

  SgdOptions options_;
  std::optional<param::Arena> momentum_;  // none where it is 0
};

using OptimizerOptions = std::variant<AdamWOptions, SgdOptions>;

[[nodiscard]] std::unique_ptr<Optimizer> make_optimizer(const OptimizerShard& shard,
                                                        const OptimizerOptions& options);

/// Returns how many values an optimizer keeps for each element that it trains.
[[nodiscard]] std::int64_t values_per_element(const OptimizerOptions& options);

/// Returns the bytes of these values in one shard.
[[nodiscard]] std::int64_t state_bytes(const OptimizerOptions& options,
                                       const param::ArenaLayout& layout, at::ScalarType dtype);

}  // namespace dtrain::optim
