// A configuration brought to life on this rank: world, groups, model and engine.
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

/// The settings of `train`, for comm::check_agreement. Left out is what may differ between nodes
/// since no result depends on it: --nnodes, --interface, and --threads except where it changes
/// bits. Of what follows from a rank's node unless it is given, the name says how to give it.
[[nodiscard]] std::vector<comm::NamedValue> agreed_settings(const config::Config& config);

/// Options that all groups of a job share.
[[nodiscard]] comm::GroupOptions group_options(const config::Config& config);

/// Returns where a rank computes, without an index where that follows from its local rank.
[[nodiscard]] config::DeviceName device_of(const config::Config& config, const base::RankEnv& env);

/// Where ranks meet that a network joins: MASTER_ADDR, else the first node of SLURM's step, else
/// the loopback.
///
/// Throws: Error{usage} if the node's address is unknown.
[[nodiscard]] std::string meeting_addr(const base::RankEnv& env);

/// The world that the configuration and the launcher's environment describe.
///
/// Collective: every rank of the job.
/// Throws:     as comm::create_world and device::make_device_world; Error{usage} for an --interface that
///             this machine does not have.
[[nodiscard]] std::shared_ptr<comm::World> make_world(const config::Config& config,
                                                      const base::RankEnv& env);

/// `host`'s ranks on the devices that the configuration names, within its --memory-limit.
///
/// Collective: every rank of `host`.
/// Throws:     as device::make_device_world.
[[nodiscard]] std::shared_ptr<comm::World> on_device(const config::Config& config,
                                                     const base::RankEnv& env,
                                                     std::shared_ptr<comm::World> host);

/// Makes all that a command computes with, and owns it. Members are destroyed in reverse order.
///
/// Threads: one.
class Job {
 public:
  /// Builds the model and engine in `world`; config.batch.grad_accum must be set.
  ///
  /// Collective: every rank of the world.
  /// Throws:     Error{usage} naming the setting or the CPU type that differs between ranks, or a
  ///             machine with less memory than its ranks are predicted to hold; as
  ///             parallel::rank_plan.
  Job(const config::Config& config, std::shared_ptr<comm::World> world);

  [[nodiscard]] comm::World& world() { return *world_; }
  [[nodiscard]] const mesh::MeshGroups& groups() const { return groups_; }
  /// The CPU types of all ranks.
  [[nodiscard]] const CpuTypes& cpus() const { return cpus_; }
  /// The model that all ranks compute together, uncut.
  [[nodiscard]] const model::Model& whole_model() const { return *whole_model_; }
  /// This rank's.
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
