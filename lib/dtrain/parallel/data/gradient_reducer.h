// How the gradients of a step are held, added over microbatches and summed over ranks.
#pragma once

#include <cstdint>

#include "dtrain/comm/process_group.h"
#include "dtrain/param/arena.h"
#include "dtrain/param/gradient_memory.h"

namespace dtrain::parallel {

/// What every reducer is made with.
struct ReducerOptions {
  at::ScalarType dtype = at::kFloat;         ///< of gradients
  at::ScalarType reduce_dtype = at::kFloat;  ///< in which they travel
  std::int64_t num_microbatches = 1;         ///< of this rank, in a step
  comm::Reduction reduction = comm::Reduction::ordered;
};

/// Receives the gradients of one rank's microbatches and ends a step with the sum over all ranks,
/// of the elements that this rank's optimizer updates.
///
/// Collective: every member may communicate; all ranks of the data axis see the same events, but
///             the uses of different parameters may end in different orders.
/// Throws:     what Work::wait throws.
/// Threads:    one.
class GradientReducer : public param::GradientMemory {
 public:
  /// The backward pass of microbatch `index` (0, 1, ... each step anew) begins.
  virtual void begin_microbatch(std::int64_t index) = 0;
  /// The parameter has seen all its uses in this microbatch; without any its gradient is zero.
  virtual void settle(param::ParameterId id) = 0;
  /// All parameters of the unit are settled, and the unit schedule reduces it here.
  virtual void reduce(std::int64_t unit) = 0;
  /// Ends a microbatch that is not the step's last.
  virtual void end_microbatch() = 0;
  /// Returns when the step's gradients are reduced.
  virtual void finish() = 0;

  /// After finish(): the sum over the global batch, of the owned elements at least.
  [[nodiscard]] virtual const param::Arena& gradients() const = 0;
};

}  // namespace dtrain::parallel
