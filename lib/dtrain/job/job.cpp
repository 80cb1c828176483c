#include "dtrain/job/job.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "dtrain/comm/agreement.h"
#include "dtrain/comm/create_world.h"
#include "dtrain/config/assign.h"
#include "dtrain/job/machine_memory.h"
#include "dtrain/metrics/cpu_memory.h"
#include "dtrain/model/registry.h"
#include "dtrain/parallel/plan/plan.h"
#include "dtrain/parallel/tensor/group_tensor_axis.h"

namespace dtrain::job {
namespace {

mesh::MeshGroups make_groups(const config::Config& config, comm::World& world) {
  const parallel::Plan plan = parallel::make_plan(config.layout);
  return mesh::MeshGroups(world, mesh::DeviceMesh(plan.mesh),
                          {.shard_size = plan.data.shard_size,
                           .head_size = model::ranks_per_head(config.model, plan.mesh.tp)});
}

// Groups for all that several stages hold, this one among them or not: making them is collective.
std::vector<parallel::SharedParameters> shared_parameters(const parallel::WholeParameters& whole,
                                                          mesh::MeshGroups& groups,
                                                          comm::World& world) {
  std::vector<parallel::SharedParameters> shared;
  for (std::size_t number = 0; number < whole.stages.size(); ++number) {
    if (whole.stages[number].size() == 1) continue;
    comm::ProcessGroup* stages = groups.group_of_stages(world, whole.stages[number]);
    const auto id = std::find(whole.numbers.begin(), whole.numbers.end(),
                              static_cast<param::ParameterId>(number)) -
                    whole.numbers.begin();
    if (id == static_cast<std::ptrdiff_t>(whole.numbers.size())) continue;
    if (shared.empty() || shared.back().stages != stages) shared.push_back({{}, stages});
    shared.back().ids.push_back(id);
  }
  return shared;
}

}  // namespace

comm::GroupOptions group_options(const config::Config& config) {
  const std::chrono::duration<double> timeout(config.machine.comm_timeout_seconds);
  return {.timeout = std::chrono::duration_cast<std::chrono::milliseconds>(timeout),
          .reduction = parallel::reduction_of(config.machine)};
}

std::shared_ptr<comm::World> make_world(const config::Config& config, const base::RankEnv& env) {
  return comm::create_world({.backend = std::string(text_of(config.machine.backend)),
                             .rank = env.rank,
                             .size = env.world_size,
                             .master_addr = env.master_addr.empty() ? "127.0.0.1" : env.master_addr,
                             .master_port = env.master_port,
                             .store_fd = env.store_fd,
                             .token = env.job_token,
                             .token_file = env.job_token_file,
                             .group = group_options(config),
                             .count_memory = metrics::count_other_memory});
}

Job::Job(const config::Config& config, std::shared_ptr<comm::World> world)
    : world_(std::move(world)),
      groups_(make_groups(config, *world_)),
      cpus_(agree_on_cpu_types(world_->control(), cpu_type(), config.machine.mixed_cpus)),
      whole_model_(model::make_model(config.model, config.data.seq_len)),
      plan_(parallel::rank_plan(config, *whole_model_, groups_.coordinate())) {
  check_machine_memory(config, world_->control(), plan_.memory.total());
  if (const std::string& folder = plan_.options.disk_folder; !folder.empty()) {
    param::DiskMemory::check_room(folder, plan_.memory.state);
  }
  engine_ = std::make_unique<parallel::StepEngine>(*plan_.model, *world_, engine_groups(),
                                                   plan_.options, plan_.whole);
  if (cpus_.are_mixed) engine_->make_copies_equal();
  check_ranks_agree(config);
}

parallel::EngineGroups Job::engine_groups() {
  parallel::EngineGroups groups{.data = {.all = groups_.along(mesh::Axis::dp),
                                         .shards = groups_.shards(),
                                         .replicas = groups_.replicas()},
                                .world = &groups_.world()};
  if (groups_.mesh().sizes().tp > 1) {
    groups.tensor = &groups_.along(mesh::Axis::tp);
    tensor_axis_ = parallel::make_tensor_axis({.axis = groups.tensor, .head = groups_.head()});
    groups.tensor_axis = tensor_axis_.get();
  }
  if (groups_.mesh().sizes().pp == 1) return groups;
  pipeline_.emplace(parallel::PipelineGroups{.activations = groups_.along(mesh::Axis::pp),
                                             .gradients = groups_.pp_gradients()});
  groups.pipeline = &*pipeline_;
  groups.shared = shared_parameters(plan_.whole, groups_, *world_);
  return groups;
}

void Job::check_ranks_agree(const config::Config& config) const {
  std::vector<comm::NamedValue> values = config::value_texts(config::Command::train, config);
  for (const param::ParameterSpec& spec : whole_model_->parameters) {
    values.emplace_back("shape of " + spec.name, fmt::format("{}", spec.shape));
  }
  // Ranks that round differently would find different norms of the same weights.
  const double norm = engine_->parameter_norm();
  if (!cpus_.are_mixed)
    values.emplace_back("norm of the initial weights", fmt::format("{:a}", norm));
  comm::check_agreement(world_->control(), values);
}

}  // namespace dtrain::job
