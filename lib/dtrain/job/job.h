// Builds a rank's world, groups, model and engine from a configuration.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dtrain/base/rank_env.h"
#include "dtrain/comm/exchange.h"
#include "dtrain/comm/world.h"
#include "dtrain/config/config.h"
#include "dtrain/job/cpu_type.h"
#include "dtrain/mesh/mesh_groups.h"
#include "dtrain/parallel/engine/step_engine.h"
#include "dtrain/parallel/plan/rank_plan.h"

namespace dtrain::job {

/// Returns the settings that all ranks must share, for comm::check_agreement. Excludes settings
/// that may differ between nodes without changing results: --nnodes, --interface, and --threads
/// unless it changes bits. If a setting's default depends on the node, its name includes the flag
/// that sets it.
[[nodiscard]] std::vector<comm::NamedValue> agreed_settings(const config::Config& config);

/// Returns the options common to all groups of a job.
[[nodiscard]] comm::GroupOptions group_options(const config::Config& config);

/// Returns a rank's device, without an index if the local rank determines it.
[[nodiscard]] config::DeviceName device_of(const config::Config& config, const base::RankEnv& env);

/// Returns the rendezvous address: MASTER_ADDR, else the first node of the SLURM step, else the
/// loopback.
///
/// Throws: Error{usage} if the node's address is unknown.
[[nodiscard]] std::string rendezvous_addr(const base::RankEnv& env);

/// Connects the ranks of the job that the configuration and the launcher's environment describe.
///
/// Collective: every rank of the job.
/// Throws:     as comm::create_world and device::make_device_world; Error{usage} for an --interface
///             that this machine does not have.
[[nodiscard]] std::shared_ptr<comm::World> make_world(const config::Config& config,
                                                      const base::RankEnv& env);

/// Returns a world with the ranks of `host` on the configured devices; applies --memory-limit.
///
/// Collective: every rank of `host`.
/// Throws:     as device::make_device_world.
[[nodiscard]] std::shared_ptr<comm::World> on_device(const config::Config& config,
                                                     const base::RankEnv& env,
                                                     std::shared_ptr<comm::World> host);

/// Owns a rank's world, groups, model and engine.
///
/// Threads: one.
class Job {
 public:
  /// Builds the model and engine in `world`; config.batch.grad_accum must be set.
  ///
  /// Collective: every rank of the world.
  /// Throws:     Error{usage} naming a setting or CPU type that differs between ranks, or a machine
  ///             with less memory than its ranks are predicted to need; as parallel::rank_plan.
  Job(const config::Config& config, std::shared_ptr<comm::World> world);

  [[nodiscard]] comm::World& world() { return *world_; }
  [[nodiscard]] const mesh::MeshGroups& groups() const { return groups_; }
  /// CPU types of all ranks.
  [[nodiscard]] const CpuTypes& cpus() const { return cpus_; }
  /// The whole model: not split over the tensor axis, and not divided into stages.
  [[nodiscard]] const model::Model& whole_model() const { return *whole_model_; }
  /// The plan of this rank.
  [[nodiscard]] const parallel::RankPlan& plan() const { return plan_; }
  [[nodiscard]] parallel::StepEngine& engine() { return *engine_; }

 private:
  void warn_of_memory_limit(const config::Config& config) const;
  void check_ranks_agree(const config::Config& config) const;

  std::shared_ptr<comm::World> world_;
  std::unique_ptr<model::Model> whole_model_;
  parallel::RankPlan plan_;
  mesh::MeshGroups groups_;
  CpuTypes cpus_;
  std::unique_ptr<parallel::StepEngine> engine_;
};

}  // namespace dtrain::job
