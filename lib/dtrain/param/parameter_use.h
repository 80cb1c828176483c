// Reads a parameter through an autograd node whose backward passes the gradient to a sink, instead
// of letting autograd accumulate it. Gradients are summed in one place, the gradient arena, never
// in a lower precision (GradientMemory).
#pragma once

#include <ATen/core/Tensor.h>

#include "dtrain/param/parameter_spec.h"

namespace dtrain::param {

/// Receives one gradient per use of a parameter during a backward pass.
class GradientSink {
 public:
  virtual ~GradientSink() = default;

  /// grad: the parameter's storage shape, any strides; valid during the call only.
  /// Threads: called on the thread that runs the backward pass.
  virtual void add_gradient(ParameterId id, const at::Tensor& grad) = 0;
};

/// Returns the parameter's values for one use in a block's forward.
///
/// leaf: the parameter's arena view, with requires_grad set unless it is frozen. The result shares
/// its memory, and its gradient goes to `sink`, which must outlive the graph. Writes to the leaf do
/// not change the result's autograd version. Without grad mode, returns the leaf itself.
[[nodiscard]] at::Tensor use_parameter(const at::Tensor& leaf, ParameterId id, GradientSink& sink);

/// The memory into which a backward pass writes or adds a parameter's gradient.
struct GradientTarget {
  at::Tensor view;  ///< the parameter's storage shape, in the dtype of gradients; undefined if the
                    ///< parameter is frozen and needs no gradient
  bool is_first = false;  ///< `view` has no value yet: the gradient is written, not added

  /// Writes or adds a gradient in the dtype of `view`. grad: the parameter's storage shape, any
  /// dtype.
  void accumulate(const at::Tensor& grad) const;
};

/// The memory that accumulates a step's gradients, as seen by backward passes.
///
/// Threads: one, the one that runs the backward pass.
class GradientMemory {
 public:
  virtual ~GradientMemory() = default;

  /// Returns the target of one gradient; the caller writes or adds it before its block's backward
  /// pass ends.
  [[nodiscard]] virtual GradientTarget gradient_of(ParameterId id) = 0;

  /// Writes or adds a gradient. grad: the parameter's storage shape, any strides; valid during the
  /// call only.
  void add_gradient(ParameterId id, const at::Tensor& grad);
};

}  // namespace dtrain::param
