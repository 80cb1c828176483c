#include "dtrain/parallel/engine/engine_setup.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <utility>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/model/tensor_axis.h"
#include "dtrain/parallel/tensor/splits.h"
#include "dtrain/param/disk_memory.h"
#include "dtrain/param/offload_memory.h"

namespace dtrain::parallel {
namespace {

// Returns the actions of one microbatch's forward pass through this rank's chunks; other stages
// compute between them.
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

// Gathers the slices of all ranks of the tensor axis. Ranks with shorter slices than the first one
// send padding after theirs.
at::Tensor joined_slices(comm::ProcessGroup& tensor, const param::TensorCut& cut,
                         const at::Tensor& part, const at::TensorOptions& options) {
  const auto part_on = [&](std::int64_t rank) {
    return model::TensorCoordinate{.index = rank, .size = tensor.size()}.part_of(cut.whole);
  };
  const std::int64_t held = part.size(cut.dim);
  DTRAIN_CHECK(part_on(tensor.rank()).begin == cut.begin && part_on(tensor.rank()).count == held);
  const std::int64_t entry = part.numel() / held;  // elements
  const std::int64_t sent = part_on(0).count * entry;
  at::Tensor own = part.contiguous().view(-1);
  if (own.numel() < sent) own = at::constant_pad_nd(own, {0, sent - own.numel()});
  const at::Tensor all = at::empty({tensor.size() * sent}, options);
  tensor.all_gather(own, all).wait();
  own = at::Tensor();
  std::vector<std::int64_t> shape = part.sizes().vec();
  std::vector<at::Tensor> slices;
  for (std::int64_t rank = 0; rank < tensor.size(); ++rank) {
    shape[static_cast<std::size_t>(cut.dim)] = part_on(rank).count;
    slices.push_back(all.narrow(0, rank * sent, part_on(rank).count * entry).view(shape));
  }
  return at::cat(slices, cut.dim);
}

}  // namespace

Placement::Placement(const model::Model& model, ParameterHolders holders,
                     const mesh::MeshGroups& groups)
    : model_(model), holders_(std::move(holders)), groups_(groups) {
  if (holders_.empty()) holders_ = ParameterHolders(model.parameters.size(), {0});
}

checkpoint::Box Placement::in_whole(param::ParameterId id, checkpoint::Box box) const {
  if (const auto& cut = model_.parameters[id].cut) {
    box.offsets[static_cast<std::size_t>(cut->dim)] += cut->begin;
  }
  return box;
}

comm::ProcessGroup& Placement::stages(param::ParameterId id) const {
  return groups_.stages(holders_[id]);
}

std::vector<comm::ProcessGroup*> Placement::copies(param::ParameterId id) const {
  std::vector<comm::ProcessGroup*> groups{&stages(id), &groups_.replicas()};
  if (!model_.parameters[id].cut) groups.push_back(&groups_.along(mesh::Axis::tp));
  return groups;
}

checkpoint::Replica Placement::replica(param::ParameterId id) const {
  checkpoint::Replica replica;
  for (const comm::ProcessGroup* group : copies(id)) {
    replica.index = replica.index * group->size() + group->rank();
    replica.count *= group->size();
  }
  return replica;
}

// Every slice counts, but only the first of equal copies.
bool Placement::is_primary_copy(param::ParameterId id) const {
  const bool is_slice = model_.parameters[id].cut.has_value();
  return stages(id).rank() == 0 && (is_slice || groups_.along(mesh::Axis::tp).rank() == 0);
}

at::Tensor Placement::squares_of_all(const at::Tensor& squares) const {
  const at::Tensor all = at::zeros(squares.sizes(), squares.options());
  for (const param::ParameterId id : model_.parameters.ids()) {
    if (is_primary_copy(id)) all[id.value()].copy_(squares[id.value()]);
  }
  groups_.along(mesh::Axis::tp).all_reduce(all).wait();
  groups_.along(mesh::Axis::pp).all_reduce(all).wait();
  return all;
}

// Counts the gathered slices and their concatenation.
std::int64_t Placement::assembled_elements(const param::ParameterSpec& spec) {
  if (spec.is_held() && !spec.cut) return 0;
  std::int64_t whole = 1;
  for (const std::int64_t size : spec.whole_shape()) whole *= size;
  return spec.is_held() ? 2 * whole : whole;
}

at::Tensor Placement::assembled(param::ParameterId id, const at::Tensor& part,
                                const at::TensorOptions& options) const {
  at::Tensor whole = part;
  if (!model_.parameters[id].is_held()) {
    whole = at::empty(model_.parameters[id].whole_shape(), options);
  } else if (const auto& cut = model_.parameters[id].cut) {
    whole = joined_slices(groups_.along(mesh::Axis::tp), *cut, part, options);
  }
  const std::vector<std::int64_t>& stages = holders_[id];
  comm::ProcessGroup& pipeline = groups_.along(mesh::Axis::pp);
  const bool is_everywhere = std::ssize(stages) == pipeline.size();
  if (!is_everywhere) pipeline.broadcast(whole, stages.front()).wait();
  return whole;
}

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
  const std::vector<Action>& stage = options.stage.actions;
  return {.step = with_events(stage.empty() ? whole_model : stage),
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
