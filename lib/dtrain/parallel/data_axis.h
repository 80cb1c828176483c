// How parameters, gradients and optimizer state are held by ranks that see different data.
#pragma once

#include "dtrain/param/parameter_spec.h"

namespace dtrain::parallel {

/// The events of a step that the data axis acts on: plain calls of the step engine between two
/// actions, never hooks inside autograd.
///
/// Collective: every event may communicate; all ranks of the axis see the same events, but the uses
/// of different
///             parameters may end in different orders.
/// Throws:     what Work::wait throws.
class DataAxis {
 public:
  virtual ~DataAxis() = default;

  /// The step's last microbatch begins its backward pass.
  virtual void begin_last_backward() = 0;
  /// The parameter's gradient on this rank is final for this step: no use is left.
  virtual void after_last_use(param::ParameterId id) = 0;
  /// Returns when the gradients of the step are reduced.
  virtual void finish_backward() = 0;
};

}  // namespace dtrain::parallel
