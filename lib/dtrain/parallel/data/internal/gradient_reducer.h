// The interface of gradient reducers, which store, accumulate and reduce a step's gradients.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "dtrain/data/batch.h"
#include "dtrain/mesh/mesh_groups.h"
#include "dtrain/parallel/compress/all_reducer.h"
#include "dtrain/parallel/data/internal/parameter_store.h"
#include "dtrain/parallel/data/internal/unit_schedule.h"
#include "dtrain/param/arena.h"
#include "dtrain/param/parameter_use.h"

namespace dtrain::parallel {

/// Options common to all reducers.
struct ReducerOptions {
  at::ScalarType dtype = at::kFloat;  ///< gradient dtype
  std::shared_ptr<const GradientCodec> codec = dtype_codec(at::kFloat);
  std::int64_t num_microbatches = 1;  ///< per rank and step
  comm::Reduction reduction = comm::Reduction::ordered;
  Compression compression = {};  ///< between ranks that hold the same gradients
};

/// Owns a rank's gradients and their communication: accumulates the gradients of the rank's
/// microbatches and sums them over all ranks, at least for the elements that this rank updates.
/// Frozen parameters have no gradients.
///
/// Collective: every member may communicate. All ranks of the data axis make the same calls, but
///             mark_gradient_ready() of different parameters may come in different orders.
/// Throws:     what Work::wait throws.
/// Threads:    one.
class GradientReducer : public param::GradientMemory {
 public:
  /// Begins a step.
  virtual void begin_step(const StepReduceOptions&) {}
  /// Begins the backward pass of a microbatch; each step begins with microbatch 0.
  virtual void begin_microbatch(data::MicrobatchId id) = 0;
  /// Call when all uses of the parameter in this microbatch have added their gradients. If there
  /// was no use, the gradient is zero.
  virtual void mark_gradient_ready(param::ParameterId id) = 0;
  /// Reduces a unit when the unit schedule says so; all its gradients must be ready.
  virtual void reduce(param::UnitId unit) = 0;
  /// Ends a microbatch that is not the step's last.
  virtual void end_microbatch() = 0;
  /// Blocks until the step's gradients are reduced.
  virtual void finish() = 0;

  /// Call after finish(). Holds the sum over the global batch, at least for the elements that this
  /// rank updates.
  [[nodiscard]] virtual const param::Arena& gradients() const = 0;
  /// Call after finish(), once per step. has_updated: the optimizer has applied the gradients.
  virtual void end_step(bool /*has_updated*/) {}
  /// Returns the state that persists across steps, sharing memory; checkpoints save it. State that
  /// a checkpoint lacks is reinitialised, so a run may resume with another reducer.
  [[nodiscard]] virtual ErrorFeedbackState error_feedback() const { return {}; }
  /// Statistics of the last step's compression; empty without compression.
  [[nodiscard]] virtual std::optional<CompressionReport> compression() const {
    return std::nullopt;
  }
};

/// The inputs that determine a reducer's memory and traffic.
struct ReducerSetup {
  const param::ArenaLayout& layout;
  const UnitSchedule& schedule;
  std::int64_t num_ranks = 1;  ///< size of the data axis
  ReducerOptions options = {};
};

/// A rank's traffic in a step, in ring collectives. Excludes reductions over replicas of shards.
struct ReducerTraffic {
  std::int64_t reductions = 0;  ///< calls over the shards, or over all ranks if unsharded
  std::int64_t bytes = 0;       ///< sent by these calls

  bool operator==(const ReducerTraffic&) const = default;
};

/// Factory and cost model of a reducer type. To use a type that data_axis.cpp does not list, set
/// DataPlan::reducer.
struct ReducerKind {
  MemoryPlan (*memory)(const ReducerSetup& setup);
  ReducerTraffic (*traffic)(const ReducerSetup& setup);
  std::unique_ptr<GradientReducer> (*make)(const ReducerSetup& setup,
                                           const mesh::MeshGroups& groups,
                                           const param::ArenaAllocator& allocate);
};

/// The ReducerKind of a class with static memory() and traffic() and a constructor with make()'s
/// parameters. setup.layout, the groups and what `allocate` refers to must outlive the reducer.
template <typename Reducer>
inline constexpr ReducerKind kReducerKind{
    .memory = &Reducer::memory,
    .traffic = &Reducer::traffic,
    .make = [](const ReducerSetup& setup, const mesh::MeshGroups& groups,
               const param::ArenaAllocator& allocate) -> std::unique_ptr<GradientReducer> {
      return std::make_unique<Reducer>(setup, groups, allocate);
    }};

}  // namespace dtrain::parallel
