// The data axis: holds parameters and gradients in full or as shards, and gathers and reduces them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "dtrain/mesh/mesh_groups.h"
#include "dtrain/model/model.h"
#include "dtrain/parallel/data/internal/gradient_reducer.h"
#include "dtrain/parallel/data/internal/parameter_store.h"
#include "dtrain/parallel/data/internal/unit_schedule.h"
#include "dtrain/parallel/precision.h"

namespace dtrain::parallel {

/// Resolved sharding of state over data-parallel ranks; every strategy of this axis maps to one
/// plan.
struct DataPlan {
  std::int64_t num_ranks = 1;   ///< data-parallel world size
  std::int64_t shard_size = 1;  ///< ranks that share one copy of the optimizer state; 1: unsharded
  WrapPolicy wrap;
  UnitScheduleOptions schedule{.reshard = Reshard::never, .reduce_every_microbatch = false};
  Compression compression = {};          ///< for the gradient sum over replicas
  const ReducerKind* reducer = nullptr;  ///< null: chosen from the sharding

  /// True if full gradients exist only unit by unit, until each unit is reduced.
  [[nodiscard]] bool keeps_gradient_shards() const {
    return shard_size > 1 && schedule.reduce_every_microbatch;
  }
  bool operator==(const DataPlan&) const = default;
};

struct DataAxisOptions {
  DataPlan plan;
  Precision precision = {};
  /// Holds the master weights; null: they are in the compute device's memory.
  param::OffloadMemory* offload = nullptr;
  std::int64_t num_microbatches = 1;  ///< per rank and step
  comm::Reduction reduction = comm::Reduction::ordered;
  RecomputePlan recompute = {};
};

/// A rank's gathers and reductions over its shard group in a step; all zero without sharding.
/// Excludes the reductions over replicas and those of the gradient norm and the loss.
///
/// Units: calls, and bytes sent per rank in a ring.
struct DataTraffic {
  std::int64_t gathers = 0;
  std::int64_t gather_bytes = 0;
  std::int64_t reductions = 0;
  std::int64_t reduction_bytes = 0;
  std::int64_t max_gathered = 0;  ///< peak number of units gathered or in flight

  bool operator==(const DataTraffic&) const = default;
};

/// Owns one rank's parameters and gradients, and gathers and reduces them by a schedule made before
/// the first step. The executor calls before() and after() around each action; there are no
/// autograd hooks.
///
/// Collective: before() and after() may communicate; all ranks of the axis call them in the same
///             order.
/// Throws:     what Work::wait throws.
/// Threads:    one.
class DataAxis {
 public:
  /// `model`, `layout`, `groups` and what `allocate` refers to must outlive this.
  DataAxis(const model::Model& model, const param::ArenaLayout& layout,
           const mesh::MeshGroups& groups, const param::ArenaAllocator& allocate,
           const ActionLists& lists, const DataAxisOptions& options);

  /// Predict the memory of a rank's parameters and gradients, and their traffic in a step. step:
  /// the step's actions.
  [[nodiscard]] static MemoryPlan memory(const model::Model& model,
                                         const param::ArenaLayout& layout,
                                         std::span<const Action> step,
                                         const DataAxisOptions& options);
  [[nodiscard]] static DataTraffic traffic(const model::Model& model,
                                           const param::ArenaLayout& layout,
                                           std::span<const Action> step,
                                           const DataAxisOptions& options);

  /// An action list with the unit events around each action.
  struct ScheduledActions {
    std::vector<Action> actions;
    UnitSchedule schedule;
  };
  [[nodiscard]] const ScheduledActions& step() const { return step_; }
  [[nodiscard]] const ScheduledActions& evaluation() const { return evaluation_; }

  /// Call before action `index` of `list`; on return the units that it uses are gathered.
  void before(const ScheduledActions& list, std::size_t index);
  void after(const ScheduledActions& list, std::size_t index);

  [[nodiscard]] ParameterStore& parameters() { return parameters_; }
  [[nodiscard]] const ParameterStore& parameters() const { return parameters_; }
  [[nodiscard]] GradientReducer& gradients() { return *gradients_; }
  [[nodiscard]] const GradientReducer& gradients() const { return *gradients_; }

 private:
  void run(const UnitEvent& event);

  UnitUses uses_;
  ScheduledActions step_;
  ScheduledActions evaluation_;
  ParameterStore parameters_;
  std::unique_ptr<GradientReducer> gradients_;
};

}  // namespace dtrain::parallel
