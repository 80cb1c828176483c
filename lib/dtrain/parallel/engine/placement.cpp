#include "dtrain/parallel/engine/placement.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <utility>

namespace dtrain::parallel {

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

// Slices are added up; of equal copies the first counts.
bool Placement::speaks_for(param::ParameterId id) const {
  const bool is_slice = model_.parameters[id].cut.has_value();
  return stages(id).rank() == 0 && (is_slice || groups_.along(mesh::Axis::tp).rank() == 0);
}

at::Tensor Placement::squares_of_all(const at::Tensor& squares) const {
  const at::Tensor all = at::zeros(squares.sizes(), squares.options());
  for (const param::ParameterId id : model_.parameters.ids()) {
    if (speaks_for(id)) all[id.value()].copy_(squares[id.value()]);
  }
  groups_.along(mesh::Axis::tp).all_reduce(all).wait();
  groups_.along(mesh::Axis::pp).all_reduce(all).wait();
  return all;
}

// Slices as they come, and what they make.
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
    comm::ProcessGroup& tensor = groups_.along(mesh::Axis::tp);
    const at::Tensor parts = at::empty({tensor.size() * part.numel()}, options);
    tensor.all_gather(part.contiguous().view(-1), parts).wait();
    std::vector<at::Tensor> slices;
    for (const at::Tensor& slice : parts.chunk(tensor.size())) {
      slices.push_back(slice.view(part.sizes()));
    }
    whole = at::cat(slices, cut->dim);
  }
  const std::vector<std::int64_t>& stages = holders_[id];
  comm::ProcessGroup& pipeline = groups_.along(mesh::Axis::pp);
  const bool is_everywhere = std::ssize(stages) == pipeline.size();
  if (!is_everywhere) pipeline.broadcast(whole, stages.front()).wait();
  return whole;
}

}  // namespace dtrain::parallel
