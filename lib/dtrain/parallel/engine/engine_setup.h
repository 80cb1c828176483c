// Options and groups of an engine, and all that follows from them before memory is allocated.
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

/// Where the values that one rank holds stand in the whole parameters: the tensor axis cuts them,
/// the pipeline axis distributes them.
///
/// Throws:  collective members what Work::wait throws.
/// Threads: one.
class Placement {
 public:
  /// holders: StagePlan::holders. `model` and `groups` must outlive this.
  Placement(const model::Model& model, ParameterHolders holders, const mesh::MeshGroups& groups);

  /// A box of what this rank holds, as one of the whole parameter.
  [[nodiscard]] checkpoint::Box in_whole(param::ParameterId id, checkpoint::Box box) const;
  /// The stages that hold the parameter.
  [[nodiscard]] comm::ProcessGroup& stages(param::ParameterId id) const;
  /// The groups along which ranks hold copies of this rank's values, outer axes first.
  [[nodiscard]] std::vector<comm::ProcessGroup*> copies(param::ParameterId id) const;
  /// This rank among all that hold the same values.
  [[nodiscard]] checkpoint::Replica replica(param::ParameterId id) const;

  /// The sums of squares of all parameters of the model, (parameters) float64, from those of this
  /// rank's part of each; equal on all ranks.
  ///
  /// Collective: over the tensor and the pipeline axis.
  [[nodiscard]] at::Tensor squares_of_all(const at::Tensor& squares) const;

  /// The whole parameter, in its storage shape. part: what this rank holds of it; undefined on
  /// stages that do not.
  ///
  /// Collective: over the tensor and the pipeline axis.
  [[nodiscard]] at::Tensor assembled(param::ParameterId id, const at::Tensor& part,
                                     const at::TensorOptions& options) const;
  /// Returns the elements that assembled() takes for such a parameter.
  [[nodiscard]] static std::int64_t assembled_elements(const param::ParameterSpec& spec);

 private:
  [[nodiscard]] bool is_primary_copy(param::ParameterId id) const;

  const model::Model& model_;
  ParameterHolders holders_;
  const mesh::MeshGroups& groups_;
};

struct EngineOptions {
  Precision precision = {};
  std::int64_t grad_accum_steps = 1;  ///< microbatches per rank and step
  std::uint64_t seed = 0;             ///< of initial weights and dropout
  comm::Reduction reduction = comm::Reduction::ordered;
  DataPlan data = {};
  config::Offload offload = {};  ///< none where it has no effect
  optim::OptimizerOptions optimizer = {};
  std::vector<param::ParameterId> frozen = {};  ///< never updated
  RecomputePlan recompute = {};
  bool uses_graphs = false;  ///< of the device: GraphRunner; a whole model without a tensor axis
  StagePlan stage = {};

  [[nodiscard]] bool offloads_masters() const {
    return offload.kind == config::Offload::Kind::disk ||
           offload.kind == config::Offload::Kind::all;
  }
};

/// How the arenas of an engine with these options are cut.
[[nodiscard]] param::ArenaLayout engine_layout(const model::Model& model,
                                               const EngineOptions& options);
/// The lists of a rank with these options.
[[nodiscard]] ActionLists engine_actions(const model::Model& model, const EngineOptions& options);
/// lists: engine_actions.
[[nodiscard]] DataAxisOptions axis_options(const EngineOptions& options, const ActionLists& lists);

/// The parts of an engine share this; it does not change while they exist.
struct EngineSetup {
  /// `model`, `world` and the groups must outlive this.
  EngineSetup(model::Model& model, comm::World& world, const mesh::MeshGroups& groups,
              EngineOptions options);

  model::Model& model;
  comm::World& world;  ///< new tensors lie on its device
  const mesh::MeshGroups& groups;
  EngineOptions options;
  Placement placement;
  param::ArenaLayout layout;
  std::unique_ptr<model::TensorAxis> tensor_axis;
  /// Of what options.offload names; null: the rank's memory has room for all.
  std::unique_ptr<param::OffloadMemory> offload;

  /// Null: masters are not offloaded.
  [[nodiscard]] param::OffloadMemory* memory_of_masters() const {
    return options.offloads_masters() ? offload.get() : nullptr;
  }
  [[nodiscard]] param::ShardId shard() const { return param::ShardId(groups.shards().rank()); }
};

}  // namespace dtrain::parallel
