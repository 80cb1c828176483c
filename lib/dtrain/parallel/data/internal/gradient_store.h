// The gradients of one rank's step in full: each microbatch's computed alone, then added in the
// fixed tree order.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "dtrain/comm/process_group.h"
#include "dtrain/data/batch.h"
#include "dtrain/param/arena.h"
#include "dtrain/param/parameter_use.h"

namespace dtrain::parallel {

/// Gradient arenas of what is trained, and the order in which microbatches are added into one.
///
/// With Reduction::ordered microbatch m's gradient has the same bits wherever it is computed, and
/// the microbatches of a step are added as comm/tree_order.h says, which takes one spare arena for
/// each level of the tree. With Reduction::fast every use is added to one arena as it comes.
///
/// Threads: one.
class GradientStore : public param::GradientMemory {
 public:
  GradientStore(const param::ArenaLayout& layout, at::ScalarType dtype,
                const param::ArenaAllocator& allocate, std::int64_t num_microbatches,
                comm::Reduction reduction);

  /// Collects the gradients of this microbatch; each step begins with microbatch 0.
  void begin_microbatch(data::MicrobatchId id);
  /// In the current microbatch's gradient; of a parameter that is not frozen.
  [[nodiscard]] param::GradientTarget gradient_of(param::ParameterId id) override;
  /// The parameter has seen all its uses in this microbatch; without any its gradient is zero.
  /// No-op if it is frozen.
  void settle(param::ParameterId id);
  /// Ends a microbatch that is not the step's last.
  void end_microbatch();
  /// In the last microbatch: adds the earlier microbatches to these elements, whose parameters must
  /// be settled. Every element is to be finished once.
  void finish(param::ElementRange range);

  /// The step's gradients once all elements are finished; until the next begin_microbatch(0).
  [[nodiscard]] const param::Arena& gradients() const { return *current_; }
  /// Arenas held for so many microbatches, spare ones included, and their bytes.
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
  std::vector<std::unique_ptr<param::Arena>> pending_;  // partial sums, the newest last
  std::vector<std::unique_ptr<param::Arena>> spare_;
  // True where there is no gradient yet that the next one adds to.
  base::IndexedVector<param::ParameterId, bool> untouched_;
  std::int64_t index_ = 0;
};

}  // namespace dtrain::parallel
