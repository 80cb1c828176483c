#include "dtrain/job/job.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <utility>

#include "dtrain/base/check.h"
#include "dtrain/comm/agreement.h"
#include "dtrain/comm/create_world.h"
#include "dtrain/config/assign.h"
#include "dtrain/config/resolve.h"
#include "dtrain/job/machine_memory.h"
#include "dtrain/metrics/cpu_memory.h"
#include "dtrain/model/registry.h"
#include "dtrain/parallel/pipeline/balance.h"

namespace dtrain::job {
namespace {

comm::Reduction reduction_of(const config::Config& config) {
  return config.machine.reduction == config::Reduction::fast ? comm::Reduction::fast
                                                             : comm::Reduction::ordered;
}

// A name that no parameter of the whole model has is refused.
void check_frozen(const config::TrainConfig& train, const model::Model& whole) {
  for (const std::string& name : train.freeze) {
    std::vector<std::string_view> known;
    for (const param::ParameterSpec& spec : whole.parameters) known.push_back(spec.name);
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      base::fail(base::ErrorKind::usage, "--freeze: the model has no parameter '{}'; it has {}",
                 name, fmt::join(known, ", "));
    }
  }
}

std::vector<param::ParameterId> frozen_ids(const config::TrainConfig& train,
                                           const model::Model& model) {
  std::vector<param::ParameterId> ids;
  for (std::size_t id = 0; id < model.parameters.size(); ++id) {
    const std::string& name = model.parameters[id].name;
    if (std::find(train.freeze.begin(), train.freeze.end(), name) != train.freeze.end()) {
      ids.push_back(static_cast<param::ParameterId>(id));
    }
  }
  return ids;
}

optim::OptimizerOptions optimizer_options(const config::TrainConfig& train,
                                          std::vector<param::ParameterId> frozen) {
  if (train.optimizer == config::UpdateRule::sgd) {
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
  const bool is_on_disk = !config.machine.offload.folder.empty();
  if (is_on_disk && plan.schedule.reshard == parallel::Reshard::never) {
    plan.schedule.reshard = parallel::Reshard::after_use;
  }
  return plan;
}

parallel::EngineOptions engine_options(const config::Config& config, const model::Model& model,
                                       parallel::StagePlan stage) {
  const config::MachineConfig& machine = config.machine;
  parallel::EngineOptions options{
      .master_dtype = master_dtype_of(machine),
      .compute_dtype = dtype_of(machine.param_dtype),
      // On one rank nothing travels, and so nothing is converted.
      .reduce_dtype =
          config.layout.dp > 1 ? dtype_of(machine.reduce_dtype) : master_dtype_of(machine),
      .buffer_dtype = dtype_of(machine.buffer_dtype),
      .scales_loss = config::needs_loss_scaling(machine),
      .grad_accum_steps = config.batch.grad_accum,
      .seed = config.train.seed,
      .reduction = reduction_of(config),
      .data = data_plan(config),
      .disk_folder = machine.offload.folder,
      .optimizer = optimizer_options(config.train, frozen_ids(config.train, model)),
      .stage = std::move(stage)};
  options.recompute = parallel::choose_recompute(config, model, options);
  return options;
}

// Which blocks each part of the pipeline has.
std::vector<model::BlockRange> parts_of(const config::Config& config, const model::Model& model,
                                        const parallel::PipelineShape& shape,
                                        const parallel::PipelinePlan& plan) {
  if (!plan.split.empty()) return split_by_hand(shape, model.levels().size(), plan.split);
  const model::BatchShape microbatch{.sequences = config.batch.microbatch,
                                     .length = config.data.seq_len,
                                     .dtype = dtype_of(config.machine.param_dtype)};
  std::vector<parallel::BlockLoad> loads;
  for (std::size_t block = 0; block < model.blocks.size(); ++block) {
    const model::BlockMemory memory = model.blocks[block]->memory(microbatch);
    loads.push_back({.flops = model.costs[block].forward_flops_per_token,
                     .bytes = memory.saved + memory.output});
  }
  return balance_parts(shape, loads);
}

}  // namespace

at::ScalarType dtype_of(config::Dtype dtype) {
  if (dtype == config::Dtype::float64) return at::kDouble;
  if (dtype == config::Dtype::bfloat16) return at::kBFloat16;
  if (dtype == config::Dtype::float16) return at::kHalf;
  DTRAIN_CHECK(dtype == config::Dtype::float32, "dtype {}", dtype);
  return at::kFloat;
}

at::ScalarType master_dtype_of(const config::MachineConfig& machine) {
  return dtype_of(config::wide_dtype(machine));
}

comm::GroupOptions group_options(const config::Config& config) {
  const std::chrono::duration<double> timeout(config.machine.comm_timeout_seconds);
  return {.timeout = std::chrono::duration_cast<std::chrono::milliseconds>(timeout),
          .reduction = reduction_of(config)};
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
    : config_(config),
      world_(std::move(world)),
      plan_(parallel::make_plan(config.layout)),
      whole_model_(model::make_model(config.model, config.data.seq_len)),
      stage_(make_stage()),
      groups_(*world_, mesh::DeviceMesh(plan_.mesh),
              {.shard_size = plan_.data.shard_size,
               .tensor = model::tensor_subgroups(config.model, plan_.mesh[mesh::Axis::tp]),
               .stages = stage_.whole.stages}),
      cpus_(agree_on_cpu_types(groups_.world(), cpu_type(), config.machine.mixed_cpus)) {
  check_frozen(config.train, *whole_model_);
  parallel::EngineOptions options = engine_options(config, *stage_.model, stage_.plan);
  recompute_ = options.recompute;
  memory_ = parallel::plan_memory(config, *stage_.model, options);
  check_machine_memory(config, groups_.world(), memory_.total());
  if (!options.disk_folder.empty()) {
    param::DiskMemory::check_room(options.disk_folder, memory_.state);
  }
  engine_ = std::make_unique<parallel::StepEngine>(*stage_.model, *world_, groups_,
                                                   std::move(options), stage_.whole);
  if (cpus_.are_mixed) engine_->make_copies_equal();
  check_ranks_agree();
}

parallel::Stage Job::make_stage() const {
  using mesh::Axis;
  const mesh::MeshShape& sizes = plan_.mesh;
  const mesh::MeshShape place = mesh::DeviceMesh(sizes).coordinate(world_->rank());
  auto model = model::make_model(
      config_.model, config_.data.seq_len,
      {.index = place[Axis::tp], .size = sizes[Axis::tp], .splits_vocab = plan_.splits_vocab});
  parallel::StagePlace stage{.shape = {.kind = plan_.pipeline.kind,
                                       .stages = sizes[Axis::pp],
                                       .microbatches = config_.batch.grad_accum,
                                       .chunks = plan_.pipeline.chunks},
                             .parts = {},
                             .stage = place[Axis::pp]};
  if (sizes[Axis::pp] > 1) stage.parts = parts_of(config_, *model, stage.shape, plan_.pipeline);
  return parallel::make_stage(std::move(model), whole_model_->parameters, stage);
}

void Job::check_ranks_agree() const {
  std::vector<comm::NamedValue> values = config::value_texts(config::Command::train, config_);
  for (const param::ParameterSpec& spec : whole_model_->parameters) {
    values.emplace_back("shape of " + spec.name, fmt::format("{}", spec.shape));
  }
  // Ranks that round differently would find different norms of the same weights.
  const double norm = engine_->parameter_norm();
  if (!cpus_.are_mixed)
    values.emplace_back("norm of the initial weights", fmt::format("{:a}", norm));
  comm::check_agreement(groups_.world(), values);
}

}  // namespace dtrain::job
