// The memory that a step's gradients are summed in, as backward passes see it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include "dtrain/param/parameter_spec.h"

namespace dtrain::param {

/// Room for a parameter's gradient.
struct GradientPlace {
  at::Tensor view;  ///< the parameter's storage shape, in the dtype of gradients; undefined: none
                    ///< is wanted, since the parameter is frozen
  bool is_first = false;  ///< `view` has no value yet: the gradient is written, not added
};

/// Threads: one, the one that runs the backward pass.
class GradientMemory {
 public:
  virtual ~GradientMemory() = default;

  /// The caller writes or adds one gradient, as the place says, before its block's backward pass
  /// ends.
  [[nodiscard]] virtual GradientPlace gradient_of(ParameterId id) = 0;

  /// grad: the parameter's storage shape, any strides; valid during the call only.
  void add_gradient(ParameterId id, const at::Tensor& grad) {
    const at::NoGradGuard no_grad;
    const GradientPlace place = gradient_of(id);
    if (place.is_first) {
      place.view.copy_(grad);  // not 0 + grad: a negative zero keeps its sign
    } else {
      place.view.add_(grad);
    }
  }
};

}  // namespace dtrain::param
