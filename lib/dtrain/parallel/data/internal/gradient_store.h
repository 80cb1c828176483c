// Accumulates unsharded gradients over a rank's microbatches, in fixed tree order.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "dtrain/comm/process_group.h"
#include "dtrain/data/batch.h"
#include "dtrain/param/arena.h"
#include "dtrain/param/parameter_use.h"

namespace dtrain::parallel {

/// Gradient arenas of the trained parameters, accumulated over microbatches.
///
/// With Reduction::ordered, each microbatch's gradient is computed separately, so its bits do not
/// depend on the rank. Microbatches are then added in the order of comm/tree_order.h, which needs
/// one spare arena per level of the tree. With Reduction::fast every gradient is added to one arena
/// as it arrives.
///
/// Threads: one.
class GradientStore : public param::GradientMemory {
 public:
  GradientStore(const param::ArenaLayout& layout, at::ScalarType dtype,
                const param::ArenaAllocator& allocate, std::int64_t num_microbatches,
                comm::Reduction reduction);

  /// Begins a microbatch; each step begins with microbatch 0.
  void begin_microbatch(data::MicrobatchId id);
  /// Returns where to add the parameter's gradient of the current microbatch. The parameter must
  /// not be frozen.
  [[nodiscard]] param::GradientTarget gradient_of(param::ParameterId id) override;
  /// As GradientReducer::mark_gradient_ready; no-op if the parameter is frozen.
  void mark_gradient_ready(param::ParameterId id);
  /// Ends a microbatch that is not the step's last.
  void end_microbatch();
  /// In the last microbatch: adds the earlier microbatches to these elements, whose gradients must
  /// be ready. Call once for each element.
  void finish(param::ElementRange range);

  /// The step's gradients once all elements are finished; valid until the next begin_microbatch(0).
  [[nodiscard]] const param::Arena& gradients() const { return *current_; }
  /// Return the number of arenas, spares included, for this many microbatches, and their bytes.
  [[nodiscard]] static std::int64_t arenas_for(std::int64_t num_microbatches,
                                               comm::Reduction reduction);
  [[nodiscard]] static std::int64_t bytes(const param::ArenaLayout& layout, at::ScalarType dtype,
                                          std::int64_t num_microbatches,
                                          comm::Reduction reduction) {
    return arenas_for(num_microbatches, reduction) * param::Arena::bytes_of_trained(layout, dtype);
  }

 private:
  std::int64_t num_microbatches_;
  comm::Reduction reduction_;
  std::unique_ptr<param::Arena> current_;
  std::vector<std::unique_ptr<param::Arena>> pending_;  // partial sums, newest last
  std::vector<std::unique_ptr<param::Arena>> spare_;
  // True if the next gradient overwrites instead of adding.
  base::IndexedVector<param::ParameterId, bool> untouched_;
  std::int64_t index_ = 0;
};

}  // namespace dtrain::parallel
