#include "dtrain/parallel/plan/rank_plan.h"

#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/config/resolve/resolve.h"
#include "dtrain/config/values/layout.h"
#include "dtrain/model/family.h"
#include "dtrain/parallel/pipeline/balance.h"

namespace dtrain::parallel {
namespace {

// Makes the data plan of a sharding.
DataPlan sharded(const config::LayoutConfig& layout, config::Sharding sharding) {
  DataPlan plan;
  plan.num_ranks = layout.dp;
  if (sharding == config::Sharding::none || layout.shard_size == 1) return plan;
  plan.shard_size = layout.shard_size;
  plan.wrap = layout.wrap;
  UnitScheduleOptions& schedule = plan.schedule;
  schedule.reduce_every_microbatch = layout.accumulate == config::Accumulation::sharded;
  if (sharding == config::Sharding::gradients || sharding == config::Sharding::optimizer)
    return plan;
  schedule.reshard =
      sharding == config::Sharding::parameters ? Reshard::after_use : Reshard::after_backward;
  schedule.backward_prefetch = layout.backward_prefetch;
  schedule.forward_prefetch = layout.forward_prefetch;
  schedule.limit_gathers = layout.limit_gathers;
  return plan;
}

std::vector<std::string_view> names_of(const param::ParameterSpecs& specs) {
  std::vector<std::string_view> names;
  for (const param::ParameterSpec& spec : specs) names.push_back(spec.name);
  return names;
}

std::vector<param::ParameterId> frozen_ids(const config::TrainConfig& train,
                                           const model::Model& model) {
  const std::vector<std::string_view> known = names_of(model.parameters);
  std::vector<param::ParameterId> ids;
  for (const std::string& name : train.freeze) {
    const auto found = std::find(known.begin(), known.end(), name);
    if (found == known.end()) {
      base::fail(base::ErrorKind::usage, "--freeze: the model has no parameter '{}'; it has {}",
                 name, fmt::join(known, ", "));
    }
    ids.emplace_back(found - known.begin());
  }
  return ids;
}

// The kinds of parameters that --no-decay names.
std::optional<param::ParameterKind> kind_named(std::string_view name) {
  using Kind = param::ParameterKind;
  if (name == "norms") return Kind::norm;
  if (name == "biases") return Kind::bias;
  if (name == "embeddings") return Kind::embedding;
  return std::nullopt;
}

// Excludes the parameters that --no-decay selects from weight decay.
void exclude_from_decay(const config::TrainConfig& train, param::ParameterSpecs& specs) {
  for (const std::string& item : train.no_decay) {
    const auto kind = kind_named(item);
    bool is_used = kind.has_value();  // a model may have no parameter of a kind
    for (param::ParameterSpec& spec : specs) {
      const bool is_selected =
          kind ? spec.kind == *kind : fnmatch(item.c_str(), spec.name.c_str(), 0) == 0;
      if (!is_selected) continue;
      spec.decay = false;
      is_used = true;
    }
    if (is_used) continue;
    base::fail(base::ErrorKind::usage,
               "--no-decay: the model has no parameter '{}'; give norms, biases, embeddings or one "
               "of {}",
               item, fmt::join(names_of(specs), ", "));
  }
}

optim::OptimizerOptions optimizer_options(const config::TrainConfig& train) {
  if (train.optimizer == config::UpdateRule::sgd) {
    return optim::SgdOptions{.momentum = train.momentum, .weight_decay = train.weight_decay};
  }
  return optim::AdamWOptions{.beta1 = train.beta1,
                             .beta2 = train.beta2,
                             .eps = train.eps,
                             .weight_decay = train.weight_decay};
}

// Offloaded parameters are loaded one unit at a time.
DataPlan data_plan(const config::Config& config, bool offloads_masters) {
  DataPlan plan = make_plan(config.layout).data;
  plan.compression = {.scheme = config.machine.compress,
                      .min_elements = config.machine.compress_min_elements};
  if (offloads_masters && plan.schedule.reshard == Reshard::never) {
    plan.schedule.reshard = Reshard::after_use;
  }
  return plan;
}

// On a CPU only offloading to disk has an effect.
config::Offload offload_of(const config::MachineConfig& machine) {
  const bool has_effect =
      !machine.device.is_cpu() || machine.offload.kind == config::Offload::Kind::disk;
  return has_effect ? machine.offload : config::Offload{};
}

// Without a plan of recomputation. stage: its plan is moved from.
EngineOptions engine_options(const config::Config& config, Stage& stage) {
  const model::Model& model = *stage.model;
  EngineOptions options{
      .precision = precision_of(config),
      .grad_accum_steps = stage.place.shape.microbatches,
      .seed = config.train.seed,
      .reduction = reduction_of(config.machine),
      .offload = offload_of(config.machine),
      .optimizer = optimizer_options(config.train),
      .frozen = frozen_ids(config.train, model),
      // On a CPU --compile selects fused kernels; on a device, graphs.
      .uses_graphs = config.machine.compile && config.machine.kernels != config::Kernels::fused,
      .stage = std::move(stage.plan)};
  options.data = data_plan(config, options.offloads_masters());
  return options;
}

// Returns the blocks of each part of the pipeline.
std::vector<model::BlockRange> parts_of(const config::Config& config, const model::Model& model,
                                        const PipelineShape& shape, const PipelinePlan& plan) {
  if (!plan.split.empty()) return split_manually(shape, model.layers().size(), plan.split);
  const model::BatchShape microbatch{.sequences = config.batch.microbatch,
                                     .length = config.data.seq_len,
                                     .dtype = precision_of(config).compute};
  std::vector<BlockLoad> loads;
  for (const model::BlockId block : model.blocks.ids()) {
    const model::BlockMemory memory = model.blocks[block]->memory(microbatch);
    loads.push_back({.flops = model.costs[block].forward_flops_per_token,
                     .bytes = memory.saved + memory.output});
  }
  return balance_parts(shape, loads);
}

Stage stage_at(const config::Config& config, const mesh::MeshShape& coordinate) {
  using mesh::Axis;
  const Plan plan = make_plan(config.layout);
  const mesh::MeshShape& sizes = plan.mesh;
  const auto model_on = [&](std::int64_t tensor_rank) {
    return model::make_model(
        config.model, config.data.seq_len,
        {.index = tensor_rank, .size = sizes[Axis::tp], .splits_vocab = plan.splits_vocab},
        compute_options_of(config.machine));
  };
  auto model = model_on(coordinate[Axis::tp]);
  exclude_from_decay(config.train, model->parameters);
  StagePosition place{.shape = {.stages = sizes[Axis::pp],
                                .microbatches = config.batch.grad_accum,
                                .order = plan.pipeline.order},
                      .parts = {},
                      .stage = coordinate[Axis::pp]};
  // All ranks of a stage agree on its blocks, also if their slices differ.
  if (sizes[Axis::pp] > 1) {
    const auto first = coordinate[Axis::tp] == 0 ? nullptr : model_on(0);
    place.parts = parts_of(config, first ? *first : *model, place.shape, plan.pipeline);
  }
  return make_stage(std::move(model), place);
}

// All ranks of the tensor axis recompute the same blocks: those that its first rank, which holds the
// most, must to meet --memory-limit. model, options: of the rank at `coordinate`.
RecomputePlan recompute_at(const config::Config& config, mesh::MeshShape coordinate,
                           const model::Model& model, const EngineOptions& options) {
  if (coordinate[mesh::Axis::tp] == 0 || config.machine.memory_limit.count == 0) {
    return choose_recompute(config, model, options);
  }
  coordinate[mesh::Axis::tp] = 0;
  Stage first = stage_at(config, coordinate);
  const EngineOptions of_first = engine_options(config, first);
  return choose_recompute(config, *first.model, of_first);
}

StepFlops step_flops(const config::Config& config, const model::Model& model,
                     const EngineOptions& options) {
  const std::int64_t tokens =
      config.batch.microbatch * options.grad_accum_steps * config.data.seq_len;
  const double share = static_cast<double>(tokens) / static_cast<double>(config.layout.tp);
  return {.passes = share * model.training_flops_per_token(),
          .recomputed = share * options.recompute.extra_flops_per_token(model)};
}

}  // namespace

Plan make_plan(const config::LayoutConfig& layout) {
  Plan plan{.mesh = config::mesh_of(layout),
            .data = sharded(layout, config::sharding_of(layout)),
            .splits_vocab = layout.tp_vocab && layout.tp > 1};
  if (layout.pp > 1) plan.pipeline = {layout.schedule_pp, layout.pp_split.layers};
  return plan;
}

RankPlan rank_plan(const config::Config& config, const mesh::MeshShape& coordinate) {
  Stage stage = stage_at(config, coordinate);
  const model::Model& model = *stage.model;
  EngineOptions options = engine_options(config, stage);
  options.recompute = recompute_at(config, coordinate, model, options);
  param::ArenaLayout units = engine_layout(model, options);
  const MemoryPlan memory = plan_memory(config, model, options);
  const ActionLists lists = engine_actions(model, options);
  const DataTraffic traffic =
      DataAxis::traffic(model, units, lists.step, axis_options(options, lists));
  const StepFlops flops = step_flops(config, model, options);
  return {.model = std::move(stage.model),
          .place = std::move(stage.place),
          .options = std::move(options),
          .units = std::move(units),
          .memory = memory,
          .traffic = traffic,
          .flops = flops};
}

AllReducerSetup replica_reduction(const RankPlan& plan) {
  const Precision& precision = plan.options.precision;
  const bool is_sharded = plan.units.num_shards() > 1;  // shards are sent uncast
  return {.layout = plan.units,
          .compression = plan.options.data.compression,
          .dtype = precision.master,
          .codec = dtype_codec(is_sharded ? precision.master : precision.reduce)};
}

Precision precision_of(const config::Config& config) {
  const config::MachineConfig& machine = config.machine;
  const at::ScalarType master = dtype_of(config::wide_dtype(machine));  // never below float32
  return {.master = master,
          .compute = dtype_of(machine.param_dtype),
          // A single rank sends nothing, so it casts nothing.
          .reduce = config.layout.dp > 1 ? dtype_of(machine.reduce_dtype) : master,
          .buffer = dtype_of(machine.buffer_dtype),
          .scales_loss = config::needs_loss_scaling(machine)};
}

model::ComputeOptions compute_options_of(const config::MachineConfig& machine) {
  return {.kernels = machine.kernels,
          .attention = machine.attention,
          .recomputes_gates = machine.recompute.kind == config::RecomputeSetting::Kind::gates,
          .threads = std::max<std::int64_t>(1, machine.threads)};
}

comm::Reduction reduction_of(const config::MachineConfig& machine) {
  return machine.reduction == config::Reduction::fast ? comm::Reduction::fast
                                                      : comm::Reduction::ordered;
}

}  // namespace dtrain::parallel
