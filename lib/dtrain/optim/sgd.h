// SGD with momentum over arenas: one pass for each run of parameters that decay alike.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "dtrain/optim/optimizer.h"

namespace dtrain::optim {

struct SgdOptions {
  double momentum = 0.9;      ///< 0: none, and nothing is kept for it
  double weight_decay = 0.1;  ///< added to the gradient, as torch.optim.SGD does
};

/// buffer = momentum * buffer + gradient; parameter -= learning rate * buffer. The buffer begins at
/// zero, so that the first update is like the others.
///
/// Source: Sutskever et al., On the importance of initialization and momentum (ICML 2013), in the
/// form of torch.optim.SGD without dampening. Differs: loops of our own (optim/update_rules.h), for
/// the reason that AdamW gives.
class Sgd final : public Optimizer {
 public:
  Sgd(const OptimizerShard& shard, const SgdOptions& options);

  /// Returns the number of arenas of its state.
  [[nodiscard]] static std::int64_t num_arenas(const SgdOptions& options) {
    return options.momentum == 0 ? 0 : 1;
  }

  [[nodiscard]] std::vector<NamedArena> state() const override;

 private:
  void update(const UpdateGroup& group, const param::Arena& parameters,
              const param::Arena& gradients, const StepInputs& inputs) override;

  SgdOptions options_;
  std::optional<param::Arena> momentum_;  // none where it is 0
};

}  // namespace dtrain::optim
