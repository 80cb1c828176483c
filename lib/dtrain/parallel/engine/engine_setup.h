// The options and process groups of a StepEngine, and the data derived from them before memory is
// allocated: parameter placement, arena layout, action lists.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "dtrain/checkpoint/state.h"
#include "dtrain/config/values/values.h"
#include "dtrain/mesh/mesh_groups.h"
#include "dtrain/model/model.h"
#include "dtrain/optim/optimizers.h"
#include "dtrain/parallel/data/data_axis.h"
#include "dtrain/parallel/engine/make_stage.h"
#include "dtrain/parallel/precision.h"
#include "dtrain/param/arena.h"
#include "dtrain/param/offload_memory.h"

namespace dtrain::parallel {

/// Maps the values on one rank to whole parameters: the tensor axis slices parameters, and the
/// pipeline axis distributes them over stages.
///
/// Throws:  collective members throw what Work::wait throws.
/// Threads: one.
class Placement {
 public:
  /// holders: StagePlan::holders. `model` and `groups` must outlive this.
  Placement(const model::Model& model, ParameterHolders holders, const mesh::MeshGroups& groups);

  /// Translates a box of this rank's slice into the whole parameter.
  [[nodiscard]] checkpoint::Box in_whole(param::ParameterId id, checkpoint::Box box) const;
  /// Returns the group of pipeline stages that hold the parameter.
  [[nodiscard]] comm::ProcessGroup& stages(param::ParameterId id) const;
  /// Returns the groups whose ranks hold copies of this rank's values, outer axes first.
  [[nodiscard]] std::vector<comm::ProcessGroup*> copies(param::ParameterId id) const;
  /// Returns this rank's index and count among all ranks that hold the same values.
  [[nodiscard]] checkpoint::Replica replica(param::ParameterId id) const;

  /// Sums the sums of squares over all slices and stages, counting each value once; the result is
  /// equal on all ranks. squares: (parameters) float64, this rank's sum of squares of each
  /// parameter.
  ///
  /// Collective: over the tensor and the pipeline axis.
  [[nodiscard]] at::Tensor squares_of_all(const at::Tensor& squares) const;

  /// Returns the whole parameter, in its storage shape. part: this rank's slice; undefined on
  /// stages that do not hold the parameter.
  ///
  /// Collective: over the tensor and the pipeline axis.
  [[nodiscard]] at::Tensor assembled(param::ParameterId id, const at::Tensor& part,
                                     const at::TensorOptions& options) const;
  /// Returns the number of elements that assembled() allocates for a parameter.
  [[nodiscard]] static std::int64_t assembled_elements(const param::ParameterSpec& spec);

 private:
  [[nodiscard]] bool is_primary_copy(param::ParameterId id) const;

  const model::Model& model_;
  ParameterHolders holders_;
  const mesh::MeshGroups& groups_;
};

/// Options of a StepEngine.
struct EngineOptions {
  Precision precision = {};
  std::int64_t grad_accum_steps = 1;  ///< microbatches per rank and step
  std::uint64_t seed = 0;             ///< for initial weights and dropout
  comm::Reduction reduction = comm::Reduction::ordered;
  DataPlan data = {};
  config::Offload offload = {};  ///< Kind::none if offloading would have no effect
  optim::OptimizerOptions optimizer = {};
  std::vector<param::ParameterId> frozen = {};  ///< never updated
  RecomputePlan recompute = {};
  bool uses_graphs = false;  ///< device graphs; requires pp = tp = 1
  StagePlan stage = {};

  [[nodiscard]] bool offloads_masters() const {
    return offload.kind == config::Offload::Kind::disk ||
           offload.kind == config::Offload::Kind::all;
  }
};

/// Returns the layout of an engine's arenas.
[[nodiscard]] param::ArenaLayout engine_layout(const model::Model& model,
                                               const EngineOptions& options);
/// Returns the action lists of a rank.
[[nodiscard]] ActionLists engine_actions(const model::Model& model, const EngineOptions& options);
/// Returns the data axis options. lists: from engine_actions().
[[nodiscard]] DataAxisOptions axis_options(const EngineOptions& options, const ActionLists& lists);

/// State shared by the parts of an engine; constant while they exist.
struct EngineSetup {
  /// `model`, `world` and the groups must outlive this.
  EngineSetup(model::Model& model, comm::World& world, const mesh::MeshGroups& groups,
              EngineOptions options);

  model::Model& model;
  comm::World& world;  ///< its device holds new tensors
  const mesh::MeshGroups& groups;
  EngineOptions options;
  Placement placement;
  param::ArenaLayout layout;
  std::unique_ptr<model::TensorAxis> tensor_axis;
  /// Memory for offloaded values; null: nothing is offloaded.
  std::unique_ptr<param::OffloadMemory> offload;

  /// Returns null if masters are not offloaded.
  [[nodiscard]] param::OffloadMemory* memory_of_masters() const {
    return options.offloads_masters() ? offload.get() : nullptr;
  }
  [[nodiscard]] param::ShardId shard() const { return param::ShardId(groups.shards().rank()); }
};

}  // namespace dtrain::parallel
