// The optimizers AdamW and SGD over arenas. Each contiguous range of parameters with equal weight
// decay is updated in one pass.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "dtrain/optim/internal/optimizer.h"

namespace dtrain::optim {

/// The hyperparameters of AdamW.
struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.1;  ///< decoupled; for parameters with ParameterSpec::decay
};

/// AdamW; agrees with torch.optim.AdamW up to rounding. optim/internal/update_rules.h has the
/// formula.
///
/// Source: Loshchilov and Hutter, Decoupled Weight Decay Regularization (ICLR 2019). Differs: uses
/// our own loops, because LibTorch's fused kernel rounds the last elements of a range differently,
/// so an element's bits would depend on shard boundaries.
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
  double momentum = 0.9;      ///< 0: no momentum, and no buffer is allocated
  double weight_decay = 0.1;  ///< added to the gradient, as torch.optim.SGD does
};

/// SGD: buffer = momentum * buffer + gradient; parameter -= learning rate * buffer. The buffer is
/// initially zero, so the first update follows the same formula.
///
/// Source: Sutskever et al., On the importance of initialization and momentum (ICML 2013), in the
/// form of torch.optim.SGD without dampening. Differs: our own loops
/// (optim/internal/update_rules.h), for the same reason as AdamW.
class Sgd final : public Optimizer {
 public:
  Sgd(const OptimizerShard& shard, const SgdOptions& options);

  [[nodiscard]] std::vector<NamedArena> state() const override;

 private:
  void update(const UpdateGroup& group, const param::Arena& parameters,
              const param::Arena& gradients, const StepInputs& inputs) override;

  SgdOptions options_;
  std::optional<param::Arena> momentum_;  // empty without momentum
};

using OptimizerOptions = std::variant<AdamWOptions, SgdOptions>;

[[nodiscard]] std::unique_ptr<Optimizer> make_optimizer(const OptimizerShard& shard,
                                                        const OptimizerOptions& options);

/// Returns the number of state values per trained element.
[[nodiscard]] std::int64_t values_per_element(const OptimizerOptions& options);

/// Returns the size of one shard's optimizer state in bytes.
[[nodiscard]] std::int64_t state_bytes(const OptimizerOptions& options,
                                       const param::ArenaLayout& layout, at::ScalarType dtype);

}  // namespace dtrain::optim
