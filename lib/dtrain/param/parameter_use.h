// A block's read of a parameter: an autograd node whose backward hands the gradient to a sink
// instead of letting autograd sum it. Sums happen in one place, in the gradient arena, never below
// its precision.
#pragma once

#include <ATen/core/Tensor.h>

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

}  // namespace dtrain::param
