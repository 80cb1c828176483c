#include "dtrain/parallel/plan/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/comm/create_world.h"
#include "dtrain/metrics/format.h"
#include "dtrain/parallel/engine/engine_memory.h"

namespace dtrain::parallel {
namespace {

using metrics::format_bytes;

// This rank's part of the state, where a copy of it is kept.
std::int64_t checkpoint_bytes(const config::Config& config, const DataMemory& data) {
  if (config.checkpoint.every.is_never()) return 0;
  const std::int64_t replicas =
      config.layout.dp / std::max<std::int64_t>(1, config.layout.shard_size);
  return data.state / replicas;
}

// From no extra FLOPs to the most: some levels alone, in eighths; all; all in ever larger groups.
std::vector<RecomputePlan> cheapest_first(std::span<const model::BlockRange> runs) {
  std::int64_t levels = 0;
  for (const model::BlockRange& run : runs) levels += run.size();
  std::vector<RecomputePlan> plans;
  for (std::int64_t eighth = 0; eighth <= 8; ++eighth) {
    RecomputePlan plan = recompute_lowest_levels(runs, levels * eighth / 8);
    if (plans.empty() || !(plan == plans.back())) plans.push_back(std::move(plan));
  }
  for (std::int64_t size = 2; size <= levels; size *= 2) {
    plans.push_back(recompute_in_groups(runs, size));
  }
  return plans;
}

// What the setting allows, the cheapest first.
std::vector<RecomputePlan> candidates(const config::RecomputeSetting& setting,
                                      std::span<const model::BlockRange> runs, std::int64_t limit) {
  using Kind = config::RecomputeSetting::Kind;
  switch (setting.kind) {
    case Kind::none:
      break;
    case Kind::level:
      return {recompute_in_groups(runs, 1)};
    case Kind::every:
      return {recompute_in_groups(runs, setting.group_size)};
    case Kind::automatic:
      if (limit > 0) return cheapest_first(runs);
  }
  return {RecomputePlan{}};
}

}  // namespace

MemoryPlan plan_memory(const config::Config& config, const model::Model& model,
                       const EngineOptions& options) {
  const EngineMemory memory = engine_memory(model, options,
                                            {.sequences = config.batch.microbatch,
                                             .length = config.data.seq_len,
                                             .dtype = options.precision.compute});
  return {.parameters = memory.data.parameters,
          .gradients = memory.data.gradients,
          .optimizer = memory.data.optimizer,
          .units = memory.data.gathered + memory.data.unit_gradients,
          .activations = memory.activations.kept,
          .buffers = memory.buffers +
                     comm::backend_memory(text_of(config.machine.backend), config.layout.dp),
          .work = memory.activations.work,
          .checkpoint = checkpoint_bytes(config, memory.data),
          .state = memory.data.state};
}

RecomputePlan choose_recompute(const config::Config& config, const model::Model& model,
                               EngineOptions options) {
  const config::MachineConfig& machine = config.machine;
  const std::int64_t limit = machine.memory_limit.count;
  const auto predicted = [&](const RecomputePlan& plan) {
    options.recompute = plan;
    return plan_memory(config, model, options).total();
  };
  const std::vector<model::BlockRange> runs = options.stage.levels(model);
  const std::vector<RecomputePlan> allowed = candidates(machine.recompute, runs, limit);
  if (limit == 0) return allowed.front();
  for (const RecomputePlan& plan : allowed) {
    if (predicted(plan) <= limit) return plan;
  }
  std::int64_t least = predicted(allowed.front());
  for (const RecomputePlan& plan : cheapest_first(runs)) least = std::min(least, predicted(plan));
  const std::string others =
      machine.recompute.kind == config::RecomputeSetting::Kind::automatic
          ? std::string()
          : fmt::format("{} per rank are predicted, ", format_bytes(predicted(allowed.front())));
  base::fail(base::ErrorKind::usage,
             "--memory-limit {} cannot be met with --recompute {}: {}at least {} with --recompute "
             "auto; raise the limit, lower --microbatch or --seq-len, or shard over more ranks "
             "(--strategy fsdp)",
             machine.memory_limit, machine.recompute, others, format_bytes(least));
}

}  // namespace dtrain::parallel
