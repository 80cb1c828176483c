// Options and groups of an engine, and all that follows from them before memory is allocated.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dtrain/comm/process_group.h"
#include "dtrain/model/model.h"
#include "dtrain/optim/make_optimizer.h"
#include "dtrain/parallel/data/data_axis.h"
#include "dtrain/parallel/pipeline/run/stage_plan.h"
#include "dtrain/parallel/pipeline/run/transfers.h"
#include "dtrain/parallel/plan/placement.h"
#include "dtrain/parallel/plan/precision.h"
#include "dtrain/param/disk_memory.h"

namespace dtrain::parallel {

struct EngineOptions {
  Precision precision = {};
  std::int64_t grad_accum_steps = 1;  ///< microbatches per rank and step
  std::uint64_t seed = 0;             ///< of initial weights and dropout
  comm::Reduction reduction = comm::Reduction::ordered;
  DataPlan data = {};
  std::string disk_folder = {};  ///< of masters and optimizer state; empty: they are in RAM
  optim::OptimizerOptions optimizer = {};
  RecomputePlan recompute = {};
  StagePlan stage = {};
};

/// The ranks that one rank of an engine works with. What is null stands for an axis of size 1.
struct EngineGroups {
  DataGroups data;
  comm::ProcessGroup* world = nullptr;        ///< all ranks; null: those of `data` are all
  comm::ProcessGroup* tensor = nullptr;       ///< ranks that hold slices of the same blocks
  model::TensorAxis* tensor_axis = nullptr;   ///< how blocks work together over `tensor`
  const PipelineGroups* pipeline = nullptr;   ///< the stages
  std::vector<SharedParameters> shared = {};  ///< what this stage shares with others

  [[nodiscard]] std::int64_t num_stages() const {
    return pipeline == nullptr ? 1 : pipeline->activations.size();
  }
  [[nodiscard]] comm::ProcessGroup& all() const { return world == nullptr ? data.all : *world; }
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
  /// whole: what `model` is a part of. `model` and the groups must outlive this.
  EngineSetup(model::Model& model, const EngineGroups& groups, EngineOptions options,
              WholeParameters whole);

  model::Model& model;
  EngineGroups groups;
  EngineOptions options;
  Placement placement;
  param::ArenaLayout layout;
  std::unique_ptr<param::DiskMemory> disk;  ///< of masters and optimizer state; null: RAM

  [[nodiscard]] std::int64_t shard() const { return groups.data.shard(); }
};

}  // namespace dtrain::parallel
