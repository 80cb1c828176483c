#include "dtrain/train/job.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <utility>

#include "dtrain/base/check.h"
#include "dtrain/comm/agreement.h"
#include "dtrain/comm/create_world.h"
#include "dtrain/config/assign.h"
#include "dtrain/config/layout.h"
#include "dtrain/config/resolve.h"
#include "dtrain/metrics/cpu_memory.h"
#include "dtrain/model/registry.h"
#include "dtrain/parallel/plan.h"

namespace dtrain::train {
namespace {

comm::Reduction reduction_of(const config::Config& config) {
  return config.machine.reduction == "fast" ? comm::Reduction::fast : comm::Reduction::ordered;
}

std::vector<param::ParameterId> frozen_ids(const config::Config& config,
                                           const model::Model& model) {
  std::vector<param::ParameterId> ids;
  for (const std::string& name : config.train.freeze) {
    std::vector<std::string_view> known;
    for (std::size_t id = 0; id < model.parameters.size(); ++id) {
      known.push_back(model.parameters[id].name);
      if (known.back() == name) ids.push_back(static_cast<param::ParameterId>(id));
    }
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      base::fail(base::ErrorKind::usage, "--freeze: the model has no parameter '{}'; it has {}",
                 name, fmt::join(known, ", "));
    }
  }
  return ids;
}

optim::OptimizerOptions optimizer_options(const config::TrainConfig& train,
                                          std::vector<param::ParameterId> frozen) {
  if (train.optimizer == "sgd") {
    return optim::SgdOptions{.momentum = train.momentum,
                             .weight_decay = train.weight_decay,
                             .frozen = std::move(frozen)};
  }
  return optim::AdamWOptions{.beta1 = train.beta1,
                             .beta2 = train.beta2,
                             .eps = train.eps,
                             .weight_decay = train.weight_decay,
                             .frozen = std::move(frozen)};
}

// What lies on a disk comes to memory a unit at a time.
parallel::DataPlan data_plan(const config::Config& config) {
  parallel::DataPlan plan = parallel::make_plan(config.layout).data;
  const bool is_on_disk = !config::parse_offload(config.machine.offload).value().empty();
  if (is_on_disk && plan.schedule.reshard == parallel::Reshard::never) {
    plan.schedule.reshard = parallel::Reshard::after_use;
  }
  return plan;
}

parallel::EngineOptions engine_options(const config::Config& config, const model::Model& model) {
  const config::MachineConfig& machine = config.machine;
  parallel::EngineOptions options{
      .master_dtype = master_dtype_of(machine),
      .compute_dtype = dtype_of(machine.param_dtype),
      .reduce_dtype = dtype_of(machine.reduce_dtype),
      .buffer_dtype = dtype_of(machine.buffer_dtype),
      .scales_loss = config::needs_loss_scaling(machine),
      .grad_accum_steps = config.batch.grad_accum,
      .seed = config.train.seed,
      .reduction = reduction_of(config),
      .data = data_plan(config),
      .disk_folder = config::parse_offload(machine.offload).value(),
      .optimizer = optimizer_options(config.train, frozen_ids(config, model))};
  options.recompute = choose_recompute(config, model, options);
  return options;
}

}  // namespace

at::ScalarType dtype_of(std::string_view name) {
  if (name == "float64") return at::kDouble;
  if (name == "bfloat16") return at::kBFloat16;
  if (name == "float16") return at::kHalf;
  DTRAIN_CHECK(name == "float32", "dtype {}", name);
  return at::kFloat;
}

at::ScalarType master_dtype_of(const config::MachineConfig& machine) {
  return machine.dtype == "float64" ? at::kDouble : at::kFloat;
}

comm::GroupOptions group_options(const config::Config& config) {
  const std::chrono::duration<double> timeout(config.machine.comm_timeout_seconds);
  return {.timeout = std::chrono::duration_cast<std::chrono::milliseconds>(timeout),
          .reduction = reduction_of(config)};
}

std::shared_ptr<comm::World> make_world(const config::Config& config, const base::RankEnv& env) {
  return comm::create_world({.backend = config.machine.backend,
                             .rank = env.rank,
                             .size = env.world_size,
                             .master_addr = env.master_addr.empty() ? "127.0.0.1" : env.master_addr,
                             .master_port = env.master_port,
                             .store_fd = env.store_fd,
                             .group = group_options(config),
                             .count_memory = metrics::count_other_memory});
}

Job::Job(const config::Config& config, std::shared_ptr<comm::World> world)
    : config_(config),
      world_(std::move(world)),
      groups_(*world_, mesh::DeviceMesh(parallel::make_plan(config.layout).mesh),
              parallel::make_plan(config.layout).data.shard_size),
      model_(model::make_model(config.model, config.data.seq_len)) {
  parallel::EngineOptions options = engine_options(config, *model_);
  recompute_ = options.recompute;
  memory_ = plan_memory(config, *model_, options);
  const parallel::DataGroups groups{
      .all = data_group(), .shards = groups_.shards(), .replicas = groups_.replicas()};
  engine_ = std::make_unique<parallel::StepEngine>(*model_, *world_, groups, std::move(options));
  check_ranks_agree();
}

void Job::check_ranks_agree() const {
  std::vector<comm::NamedValue> values = config::value_texts(config::Command::train, config_);
  for (const param::ParameterSpec& spec : model_->parameters) {
    values.emplace_back("shape of " + spec.name, fmt::format("{}", spec.shape));
  }
  values.emplace_back("norm of the initial weights",
                      fmt::format("{:a}", engine_->parameter_norm()));
  comm::check_agreement(groups_.world(), values);
}

}  // namespace dtrain::train
