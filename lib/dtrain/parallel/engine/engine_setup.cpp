#include "dtrain/parallel/engine/engine_setup.h"

#include <utility>

#include "dtrain/base/check.h"
#include "dtrain/parallel/tensor/group_tensor_axis.h"
#include "dtrain/param/disk_memory.h"
#include "dtrain/param/offload_memory.h"

namespace dtrain::parallel {
namespace {

// A microbatch forward through the chunks of this rank, and through those of other stages between.
std::vector<Action> evaluation_actions(const model::Model& model, const StagePlan& stage) {
  std::vector<Action> actions{{ActionKind::begin_microbatch}};
  for (std::size_t chunk = 0; chunk < stage.chunk_begins.size(); ++chunk) {
    const bool is_last = chunk + 1 == stage.chunk_begins.size();
    const BlockId begin = stage.chunk_begins[chunk];
    const BlockId end = is_last ? model.blocks.end_id() : stage.chunk_begins[chunk + 1];
    if (chunk > 0 || !model.takes_tokens) actions.push_back({ActionKind::recv_activation, begin});
    for (BlockId block = begin; block < end; ++block) {
      actions.push_back({ActionKind::forward, block});
    }
    if (!is_last || !model.gives_losses) actions.push_back({ActionKind::send_activation, end - 1});
  }
  actions.push_back({ActionKind::end_microbatch});
  actions.push_back({ActionKind::reduce_losses});
  return actions;
}

std::unique_ptr<param::OffloadMemory> make_offload(const config::Offload& offload,
                                                   c10::Device device) {
  using Kind = config::Offload::Kind;
  if (offload.kind == Kind::disk) return std::make_unique<param::DiskMemory>(offload.folder);
  if (offload.kind == Kind::none || device.is_cpu()) return nullptr;
  return std::make_unique<param::PinnedMemory>(device);
}

}  // namespace

param::ArenaLayout engine_layout(const model::Model& model, const EngineOptions& options) {
  return param::ArenaLayout(
      model.parameters,
      {.unit_begins = unit_begins(model, options.data.wrap, options.stage.region_begins),
       .num_shards = options.data.shard_size,
       .frozen = options.frozen});
}

ActionLists engine_actions(const model::Model& model, const EngineOptions& options) {
  const std::vector<Action> whole_model =
      sequential_actions(model.blocks.size(), options.grad_accum_steps);
  const std::vector<Action>& of_stage = options.stage.actions;
  return {.step = with_events(of_stage.empty() ? whole_model : of_stage),
          .evaluation = evaluation_actions(model, options.stage)};
}

DataAxisOptions axis_options(const EngineOptions& options, const ActionLists& lists) {
  return {.plan = options.data,
          .precision = options.precision,
          .num_microbatches = num_gradient_sums(lists.step),
          .reduction = options.reduction,
          .recompute = options.recompute};
}

EngineSetup::EngineSetup(model::Model& own_model, comm::World& own_world,
                         const mesh::MeshGroups& own_groups, EngineOptions own_options)
    : model(own_model),
      world(own_world),
      groups(own_groups),
      options(std::move(own_options)),
      placement(model, options.stage.holders, groups),
      layout(engine_layout(model, options)),
      tensor_axis(make_tensor_axis(groups)),
      offload(make_offload(options.offload, world.device())) {
  DTRAIN_CHECK(groups.shards().size() == options.data.shard_size);
}

}  // namespace dtrain::parallel
