// A configuration brought to life on this rank: world, groups, model and engine.
#pragma once

#include <memory>
#include <vector>

#include "dtrain/base/rank_env.h"
#include "dtrain/comm/world.h"
#include "dtrain/config/config.h"
#include "dtrain/job/cpu_type.h"
#include "dtrain/mesh/mesh_groups.h"
#include "dtrain/model/model.h"
#include "dtrain/parallel/engine/step_engine.h"
#include "dtrain/parallel/pipeline/run/make_stage.h"
#include "dtrain/parallel/plan/memory_plan.h"
#include "dtrain/parallel/plan/plan.h"

namespace dtrain::job {

/// What every group of a job is like.
[[nodiscard]] comm::GroupOptions group_options(const config::Config& config);

/// The world that the configuration and the launcher's environment describe.
///
/// Collective: every rank of the job.
/// Throws:     as comm::create_world.
[[nodiscard]] std::shared_ptr<comm::World> make_world(const config::Config& config,
                                                      const base::RankEnv& env);

/// What every command that computes needs. Members are destroyed in reverse order.
///
/// Threads: one.
class Job {
 public:
  /// Builds the model and engine in `world`; config.batch.grad_accum must be set.
  ///
  /// Collective: every rank of the world.
  /// Throws:     Error{usage} naming the setting or the CPU type that differs between ranks, a
  /// --freeze name without a parameter, a --memory-limit that cannot be met, or a machine with less
  /// memory than its ranks are predicted to hold.
  Job(const config::Config& config, std::shared_ptr<comm::World> world);

  [[nodiscard]] const config::Config& config() const { return config_; }
  /// Gives run.dir the name that all ranks agreed on.
  void set_run_folder(const std::string& folder) { config_.run.dir = folder; }
  [[nodiscard]] comm::World& world() { return *world_; }
  [[nodiscard]] const mesh::MeshGroups& groups() const { return groups_; }
  [[nodiscard]] comm::ProcessGroup& data_group() const { return groups_.along(mesh::Axis::dp); }
  /// What this rank computes.
  [[nodiscard]] model::Model& model() { return *stage_.model; }
  /// Which part of the pipeline this rank is.
  [[nodiscard]] const parallel::StagePlace& stage_place() const { return stage_.place; }
  /// What all ranks compute together; its parameters have the numbers that StepEngine's visits
  /// give.
  [[nodiscard]] const model::Model& whole_model() const { return *whole_model_; }
  [[nodiscard]] parallel::StepEngine& engine() { return *engine_; }
  /// What this rank is predicted to hold.
  [[nodiscard]] const parallel::MemoryPlan& memory() const { return memory_; }
  [[nodiscard]] const parallel::RecomputePlan& recompute() const { return recompute_; }
  /// The CPU types of all ranks.
  [[nodiscard]] const CpuTypes& cpus() const { return cpus_; }

 private:
  [[nodiscard]] parallel::Stage make_stage() const;
  void check_ranks_agree() const;

  config::Config config_;
  std::shared_ptr<comm::World> world_;
  parallel::Plan plan_;
  std::unique_ptr<model::Model> whole_model_;
  parallel::Stage stage_;
  mesh::MeshGroups groups_;
  CpuTypes cpus_;
  parallel::RecomputePlan recompute_;
  parallel::MemoryPlan memory_;
  std::unique_ptr<parallel::StepEngine> engine_;
};

/// dtype: any but automatic.
[[nodiscard]] at::ScalarType dtype_of(config::Dtype dtype);

/// The dtype of a rank's own copy of parameters and moments: never below float32.
[[nodiscard]] at::ScalarType master_dtype_of(const config::MachineConfig& machine);

}  // namespace dtrain::job
