// Plans one rank of a job by arithmetic alone: any rank of any number of ranks, on any machine.
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

/// How a pipeline cuts the model into parts, and in which order microbatches go through them.
struct PipelinePlan {
  config::PipelineSetting order = {};
  std::vector<std::int64_t> split = {};  ///< layers of each part; empty: balanced

  bool operator==(const PipelinePlan&) const = default;
};

/// A layout's axes. Settings that mean the same give equal plans.
struct Plan {
  mesh::MeshShape mesh;
  DataPlan data;
  PipelinePlan pipeline = {};  ///< as it is by default where there is one stage
  bool splits_vocab = false;   ///< over the tensor axis; false where that has one rank

  bool operator==(const Plan&) const = default;
};

/// `layout` is resolved (config::resolve).
///
/// Throws: Error{internal} for a strategy that config::resolve would have refused.
[[nodiscard]] Plan make_plan(const config::LayoutConfig& layout);

/// Units: FLOPs of one rank in a step; a multiply-add counts 2. Ranks of the tensor axis share a
/// block's FLOPs equally.
struct StepFlops {
  double passes = 0;      ///< forward, and backward for twice as much
  double recomputed = 0;  ///< of forward passes that run again
};

/// Everything about a rank that is known before it allocates memory or meets another rank.
struct RankPlan {
  std::unique_ptr<model::Model> model;  ///< what this rank computes
  StagePlace place;                     ///< in the pipeline
  EngineOptions options;                ///< with precision, data axis, recompute and actions
  param::ArenaLayout units;
  MemoryPlan memory;
  DataTraffic traffic;
  StepFlops flops;
};

/// The plan of the rank at `coordinate` of the mesh. It allocates no tensor of a parameter's or an
/// activation's size.
///
/// config: resolved.
/// Throws: Error{usage} for a --freeze name without a parameter, a --pp-split or --schedule-pp that
///         does not fit, and as choose_recompute.
[[nodiscard]] RankPlan rank_plan(const config::Config& config, const mesh::MeshShape& coordinate);

/// How the rank's gradients are summed over ranks that hold the same. `plan` must outlive it.
[[nodiscard]] RankSumSetup sums_over_replicas(const RankPlan& plan);

/// The dtypes of these settings. config: resolved.
[[nodiscard]] Precision precision_of(const config::Config& config);

/// How the blocks of these settings compute.
[[nodiscard]] model::ComputeOptions computation_of(const config::MachineConfig& machine);

/// The order in which ranks add up.
[[nodiscard]] comm::Reduction reduction_of(const config::MachineConfig& machine);

}  // namespace dtrain::parallel
