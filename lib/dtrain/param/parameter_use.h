// A block's read of a parameter: an autograd node whose backward hands the gradient to a sink
// instead of letting autograd sum it. Sums happen in one place, in the gradient arena, never below
// its precision (GradientMemory).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include "dtrain/param/parameter_spec.h"

namespace dtrain::param {

/// Receives the gradient of each use of each parameter during a backward pass.
class GradientSink {
 public:
  virtual ~GradientSink() = default;

  /// grad: the parameter's storage shape, any strides; valid during the call only.
  /// Threads: called on the thread that runs the backward pass.
  virtual void add_gradient(ParameterId id, const at::Tensor& grad) = 0;
};

/// The parameter's values for one use inside a block's forward.
///
/// leaf: the parameter's arena view with requires_grad set, unless it is frozen. The result shares
/// its memory; its gradient goes to `sink`, which must outlive the graph. Writing to the leaf does
/// not count as a change of the result. Without grad mode the leaf itself is returned.
[[nodiscard]] at::Tensor use_parameter(const at::Tensor& leaf, ParameterId id, GradientSink& sink);

/// Room for a parameter's gradient.
struct GradientTarget {
  at::Tensor view;  ///< the parameter's storage shape, in the dtype of gradients; undefined: none
                    ///< is wanted, since the parameter is frozen
  bool is_first = false;  ///< `view` has no value yet: the gradient is written, not added

  void take(const at::Tensor& grad) const {
    if (is_first) {
      view.copy_(grad);  // not 0 + grad: a negative zero keeps its sign
    } else {
      view.add_(grad);
    }
  }
};

/// The memory that a step's gradients are summed in, as backward passes see it.
///
/// Threads: one, the one that runs the backward pass.
class GradientMemory {
 public:
  virtual ~GradientMemory() = default;

  /// The caller writes or adds one gradient, as the place says, before its block's backward pass
  /// ends.
  [[nodiscard]] virtual GradientTarget gradient_of(ParameterId id) = 0;

  /// grad: the parameter's storage shape, any strides; valid during the call only.
  void add_gradient(ParameterId id, const at::Tensor& grad) {
    const at::NoGradGuard no_grad;
    gradient_of(id).take(grad);
  }
};

}  // namespace dtrain::param
