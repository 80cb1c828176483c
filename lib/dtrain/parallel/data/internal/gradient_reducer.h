// How the gradients of a step are held, added over microbatches and summed over ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "dtrain/data/batch.h"
#include "dtrain/mesh/mesh_groups.h"
#include "dtrain/parallel/compress/rank_sum.h"
#include "dtrain/parallel/data/internal/parameter_store.h"
#include "dtrain/parallel/data/internal/unit_schedule.h"
#include "dtrain/param/arena.h"
#include "dtrain/param/parameter_use.h"

namespace dtrain::parallel {

/// The options that every reducer is made with.
struct ReducerOptions {
  at::ScalarType dtype = at::kFloat;  ///< of gradients
  std::shared_ptr<const GradientCodec> codec = travel_in(at::kFloat);
  std::int64_t num_microbatches = 1;  ///< of this rank, in a step
  comm::Reduction reduction = comm::Reduction::ordered;
  Compression compression = {};  ///< between ranks that hold the same gradients
};

/// Owns the gradients of a rank, which frozen parameters have none of, from their memory to the
/// messages in which they travel: receives the gradients of one rank's microbatches and ends a step
/// with the sum over all ranks, of the elements that this rank's optimizer updates.
///
/// Collective: every member may communicate; all ranks of the data axis see the same events, but
///             the uses of different parameters may end in different orders.
/// Throws:     what Work::wait throws.
/// Threads:    one.
class GradientReducer : public param::GradientMemory {
 public:
  /// A step begins.
  virtual void begin_step(const StepTerms&) {}
  /// The backward pass of a microbatch begins; each step begins with microbatch 0.
  virtual void begin_microbatch(data::MicrobatchId id) = 0;
  /// The parameter has seen all its uses in this microbatch; without any its gradient is zero.
  virtual void settle(param::ParameterId id) = 0;
  /// All parameters of the unit are settled, and the unit schedule reduces it here.
  virtual void reduce(param::UnitId unit) = 0;
  /// Ends a microbatch that is not the step's last.
  virtual void end_microbatch() = 0;
  /// Returns when the step's gradients are reduced.
  virtual void finish() = 0;

  /// After finish(): the sum over the global batch, of the elements that this rank trains at least.
  [[nodiscard]] virtual const param::Arena& gradients() const = 0;
  /// After finish(), once for each step. has_updated: the gradients have been applied.
  virtual void end_step(bool /*has_updated*/) {}
  /// Returns what the reducer carries from step to step, sharing memory; a checkpoint saves it.
  /// What a checkpoint lacks begins anew, so that a run may go on with another reducer than the one
  /// that saved.
  [[nodiscard]] virtual Carried carried() const { return {}; }
  /// What compression did in the last step; nothing without.
  [[nodiscard]] virtual std::optional<CompressionReport> compression() const {
    return std::nullopt;
  }
};

/// All that the memory and the traffic of a reducer follow from.
struct ReducerSetup {
  const param::ArenaLayout& layout;
  const UnitSchedule& schedule;
  std::int64_t num_ranks = 1;  ///< of the data axis
  ReducerOptions options = {};
};

/// The traffic of a rank in a step, in a ring. Sums over replicas of shards come on top.
struct ReducerTraffic {
  std::int64_t reductions = 0;  ///< calls, over the shards or, without shards, over all ranks
  std::int64_t bytes = 0;       ///< that they send

  bool operator==(const ReducerTraffic&) const = default;
};

/// A kind of reducer: what it costs, by arithmetic alone, and how it is made. A reducer that is not
/// one of data_axis.cpp's is DataPlan::reducer.
struct ReducerKind {
  MemoryPlan (*memory)(const ReducerSetup& setup);
  ReducerTraffic (*traffic)(const ReducerSetup& setup);
  std::unique_ptr<GradientReducer> (*make)(const ReducerSetup& setup,
                                           const mesh::MeshGroups& groups,
                                           const param::ArenaAllocator& allocate);
};

/// The kind of a class with static memory() and traffic() and a constructor that takes what make()
/// takes. setup.layout, what `groups` names and what `allocate` refers to outlive the reducer.
template <typename Reducer>
inline constexpr ReducerKind kReducerKind{
    .memory = &Reducer::memory,
    .traffic = &Reducer::traffic,
    .make = [](const ReducerSetup& setup, const mesh::MeshGroups& groups,
               const param::ArenaAllocator& allocate) -> std::unique_ptr<GradientReducer> {
      return std::make_unique<Reducer>(setup, groups, allocate);
    }};

}  // namespace dtrain::parallel
