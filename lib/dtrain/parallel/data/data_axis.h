// How parameters, gradients and optimizer state are held by ranks that see different data.
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

/// How ranks that see different data share state, resolved: every strategy of the axis is one of
/// these.
struct DataPlan {
  std::int64_t num_ranks = 1;   ///< of the axis
  std::int64_t shard_size = 1;  ///< ranks that share one copy of the optimizer state; 1: none
  WrapPolicy wrap;
  UnitScheduleOptions schedule{.reshard = Reshard::never, .reduce_every_microbatch = false};
  Compression compression = {};          ///< between ranks that hold the same gradients
  const ReducerKind* reducer = nullptr;  ///< null: the one that the sharding asks for

  /// True where gradients are never whole for longer than a unit's reduction takes.
  [[nodiscard]] bool keeps_gradient_shards() const {
    return shard_size > 1 && schedule.reduce_every_microbatch;
  }
  bool operator==(const DataPlan&) const = default;
};

struct DataAxisOptions {
  DataPlan plan;
  Precision precision = {};
  param::OffloadMemory* offload = nullptr;  ///< where masters are; null: where blocks compute
  std::int64_t num_microbatches = 1;        ///< of this rank, in a step
  comm::Reduction reduction = comm::Reduction::ordered;
  RecomputePlan recompute = {};
};

/// A rank's gathers and reductions over one group of shards in a step; all zero where nothing is
/// sharded. Sums over replicas, the norm and the loss come on top.
///
/// Units: calls, and bytes that each rank sends in a ring.
struct DataTraffic {
  std::int64_t gathers = 0;
  std::int64_t gather_bytes = 0;
  std::int64_t reductions = 0;
  std::int64_t reduction_bytes = 0;
  std::int64_t max_gathered = 0;  ///< units there or under way at one time

  bool operator==(const DataTraffic&) const = default;
};

/// The data axis of one rank: the parameters it computes with and the gradients it ends a step
/// with, moved by a schedule that is known beforehand. Its events are plain calls of the
/// executor between two actions, never hooks inside autograd.
///
/// Collective: every event may communicate; all ranks of the axis see the same ones.
/// Throws:     what Work::wait throws.
/// Threads:    one.
class DataAxis {
 public:
  /// `model`, `layout`, `groups` and what `allocate` refers to must outlive this.
  DataAxis(const model::Model& model, const param::ArenaLayout& layout,
           const mesh::MeshGroups& groups, const param::ArenaAllocator& allocate,
           const ActionLists& lists, const DataAxisOptions& options);

  /// Predicts what a rank's parameters and gradients take, and what they send in a step. step: its
  /// actions.
  [[nodiscard]] static MemoryPlan memory(const model::Model& model,
                                         const param::ArenaLayout& layout,
                                         std::span<const Action> step,
                                         const DataAxisOptions& options);
  [[nodiscard]] static DataTraffic traffic(const model::Model& model,
                                           const param::ArenaLayout& layout,
                                           std::span<const Action> step,
                                           const DataAxisOptions& options);

  /// A list, with what happens to units around each of its actions.
  struct Pass {
    std::vector<Action> actions;
    UnitSchedule schedule;
  };
  [[nodiscard]] const Pass& step() const { return step_; }
  [[nodiscard]] const Pass& evaluation() const { return evaluation_; }

  /// Action `index` of a pass begins: its units are there on return.
  void before(const Pass& pass, std::size_t index);
  void after(const Pass& pass, std::size_t index);

  [[nodiscard]] ParameterStore& parameters() { return parameters_; }
  [[nodiscard]] const ParameterStore& parameters() const { return parameters_; }
  [[nodiscard]] GradientReducer& gradients() { return *gradients_; }
  [[nodiscard]] const GradientReducer& gradients() const { return *gradients_; }

 private:
  void run(const UnitEvent& event);

  UnitUses uses_;
  Pass step_;
  Pass evaluation_;
  ParameterStore parameters_;
  std::unique_ptr<GradientReducer> gradients_;
};

}  // namespace dtrain::parallel
