#include "dtrain/parallel/engine/engine_setup.h"

#include <utility>

#include "dtrain/base/check.h"

namespace dtrain::parallel {
namespace {

std::unique_ptr<param::DiskMemory> make_disk(const std::string& folder) {
  return folder.empty() ? nullptr : std::make_unique<param::DiskMemory>(folder);
}

}  // namespace

param::ArenaLayout engine_layout(const model::Model& model, const EngineOptions& options) {
  return param::ArenaLayout(
      model.parameters,
      {.unit_begins = unit_begins(model, options.data.wrap, options.stage.region_begins),
       .num_shards = options.data.shard_size});
}

std::vector<Action> engine_actions(const model::Model& model, const EngineOptions& options) {
  if (!options.stage.actions.empty()) return options.stage.actions;
  return sequential_actions(static_cast<std::int64_t>(model.blocks.size()),
                            options.grad_accum_steps);
}

DataAxisOptions axis_options(const EngineOptions& options) {
  return {.plan = options.data,
          .master_dtype = options.master_dtype,
          .compute_dtype = options.compute_dtype,
          .reduce_dtype = options.reduce_dtype,
          .num_microbatches = options.stage.mixes_microbatches() ? 1 : options.grad_accum_steps,
          .reduction = options.reduction,
          .recompute = options.recompute};
}

EngineSetup::EngineSetup(model::Model& own_model, const EngineGroups& own_groups,
                         EngineOptions own_options, WholeParameters whole)
    : model(own_model),
      groups(own_groups),
      options(std::move(own_options)),
      placement(model, std::move(whole), groups.tensor,
                groups.pipeline == nullptr ? nullptr : &groups.pipeline->activations),
      layout(engine_layout(model, options)),
      disk(make_disk(options.disk_folder)) {
  DTRAIN_CHECK(groups.data.num_shards() == options.data.shard_size);
}

}  // namespace dtrain::parallel
