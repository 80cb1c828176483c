// Sums the gradients of parameters and detects when a parameter's gradient is ready.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "dtrain/model/model.h"
#include "dtrain/param/parameter_use.h"

namespace dtrain::parallel {

/// The gradient of a parameter from one of its uses in a block.
struct ParameterGradient {
  param::ParameterId id;
  at::Tensor value = {};  ///< in storage shape; undefined: no gradient
  bool is_last = true;    ///< last use in this block
};

/// Adds the gradients of blocks to the gradient memory and counts the backward passes that a
/// parameter's gradient still lacks.
///
/// Threads: one, the one that runs the backward passes.
class GradientAccumulator {
 public:
  using OnReady = std::function<void(param::ParameterId)>;

  /// interleaved_microbatches: microbatches that share a gradient sum because their backward passes
  /// alternate. on_ready: called once per parameter and gradient sum, when the last block that
  /// lists the parameter has added its gradient. `gradients` must outlive this.
  GradientAccumulator(const model::Model& model, param::GradientMemory& gradients,
                      std::int64_t interleaved_microbatches, OnReady on_ready);

  /// Returns the target of a gradient that a native backward writes or adds itself, before
  /// the use is reported without a value.
  [[nodiscard]] param::GradientTarget target_of(param::ParameterId id) {
    return gradients_.gradient_of(id);
  }

  /// Adds the gradient of one use, if it has a value. The last use in a block ends the block's
  /// backward pass for the parameter; on_ready() may follow.
  void add(const ParameterGradient& gradient);

 private:
  param::GradientMemory& gradients_;
  OnReady on_ready_;
  // Backward passes until each parameter's gradient is ready, and how many of them are pending.
  base::IndexedVector<param::ParameterId, std::int64_t> num_backwards_;
  base::IndexedVector<param::ParameterId, std::int64_t> pending_backwards_;
};

}  // namespace dtrain::parallel
