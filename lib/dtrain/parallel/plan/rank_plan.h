// Plans one rank of a job from its configuration; any process can plan any rank.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "dtrain/config/config.h"
#include "dtrain/mesh/device_mesh.h"
#include "dtrain/parallel/data/data_axis.h"
#include "dtrain/parallel/engine/engine_setup.h"
#include "dtrain/parallel/engine/make_stage.h"
#include "dtrain/parallel/plan/internal/memory_plan.h"

namespace dtrain::parallel {

/// A pipeline's schedule and its split of the model into parts.
struct PipelinePlan {
  config::PipelineSetting order = {};
  std::vector<std::int64_t> split = {};  ///< layers per part; empty: balanced

  bool operator==(const PipelinePlan&) const = default;
};

/// A resolved layout. Equivalent settings give equal plans.
struct Plan {
  mesh::MeshShape mesh;
  DataPlan data;
  PipelinePlan pipeline = {};  ///< default-initialised for one stage
  bool splits_vocab = false;   ///< split the vocabulary over the tensor axis; false if tp is 1

  bool operator==(const Plan&) const = default;
};

/// Makes a plan from a resolved layout (config::resolve).
///
/// Throws: Error{internal} for a strategy that config::resolve rejects.
[[nodiscard]] Plan make_plan(const config::LayoutConfig& layout);

/// The computation of a rank in a step.
///
/// Units: FLOPs; a multiply-add counts 2. Tensor-parallel ranks share a block's FLOPs equally.
struct StepFlops {
  double passes = 0;      ///< forward and backward passes; backward counts as twice forward
  double recomputed = 0;  ///< recomputed forward passes
};

/// The complete plan of a rank, made before it allocates memory or communicates.
struct RankPlan {
  std::unique_ptr<model::Model> model;  ///< this rank's part of the model
  StagePosition place;                  ///< the rank's position in the pipeline
  EngineOptions options;                ///< including precision, data axis, recompute and actions
  param::ArenaLayout units;
  MemoryPlan memory;
  DataTraffic traffic;
  StepFlops flops;
};

/// Plans the rank at `coordinate` of the mesh. Allocates no parameters and no activations.
///
/// config: resolved.
/// Throws: Error{usage} for a --freeze or --no-decay name without a parameter, or a --pp-split or
///         --schedule-pp that does not fit; as choose_recompute.
[[nodiscard]] RankPlan rank_plan(const config::Config& config, const mesh::MeshShape& coordinate);

/// Returns the setup of the rank's gradient all-reduce over replicas. `plan` must outlive the
/// result.
[[nodiscard]] AllReducerSetup replica_reduction(const RankPlan& plan);

/// Returns the dtypes of a configuration. config: resolved.
[[nodiscard]] Precision precision_of(const config::Config& config);

/// Returns the kernel settings of blocks.
[[nodiscard]] model::ComputeOptions compute_options_of(const config::MachineConfig& machine);

/// Returns the order of additions in reductions.
[[nodiscard]] comm::Reduction reduction_of(const config::MachineConfig& machine);

}  // namespace dtrain::parallel
