#include "dtrain/parallel/plan/placement.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "dtrain/optim/global_norm.h"

namespace dtrain::parallel {
WholeParameters whole_parameters(const model::Model& model) {
  WholeParameters whole{.specs = model.parameters,
                        .numbers = std::vector<param::ParameterId>(model.parameters.size()),
                        .stages = {}};
  std::iota(whole.numbers.begin(), whole.numbers.end(), param::ParameterId{0});
  whole.stages.assign(model.parameters.size(), {0});
  return whole;
}

const param::ParameterSpec& Placement::spec(param::ParameterId id) const {
  return model_.parameters[static_cast<std::size_t>(id)];
}

std::int64_t Placement::number(param::ParameterId id) const {
  return whole_.numbers[static_cast<std::size_t>(id)];
}

checkpoint::Box Placement::in_whole(param::ParameterId id, checkpoint::Box box) const {
  if (const auto& cut = spec(id).cut) {
    box.offsets[static_cast<std::size_t>(cut->dim)] += cut->begin;
  }
  return box;
}

comm::ProcessGroup& Placement::stages(param::ParameterId id) const {
  return groups_.stages(whole_.stages[static_cast<std::size_t>(number(id))]);
}

std::vector<comm::ProcessGroup*> Placement::copies(param::ParameterId id) const {
  std::vector<comm::ProcessGroup*> groups{&stages(id), &groups_.replicas()};
  if (!spec(id).cut) groups.push_back(&groups_.along(mesh::Axis::tp));
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
  const bool is_slice = spec(id).cut.has_value();
  return stages(id).rank() == 0 && (is_slice || groups_.along(mesh::Axis::tp).rank() == 0);
}

at::Tensor Placement::norm(const at::Tensor& squares) const {
  const at::Tensor all =
      at::zeros({static_cast<std::int64_t>(whole_.specs.size())}, squares.options());
  for (param::ParameterId id = 0; id < squares.numel(); ++id) {
    if (speaks_for(id)) all[number(id)].copy_(squares[id]);
  }
  groups_.along(mesh::Axis::tp).all_reduce(all).wait();
  groups_.along(mesh::Axis::pp).all_reduce(all).wait();
  return optim::norm_of_squares(all, whole_.specs);
}

at::Tensor Placement::assembled(std::int64_t number, const at::Tensor& part,
                                const at::TensorOptions& options) const {
  const auto slot = static_cast<std::size_t>(number);
  const auto held = std::find(whole_.numbers.begin(), whole_.numbers.end(), number);
  at::Tensor whole = part;
  if (held != whole_.numbers.end()) {
    const auto& cut = spec(held - whole_.numbers.begin()).cut;
    if (cut) {
      comm::ProcessGroup& tensor = groups_.along(mesh::Axis::tp);
      const at::Tensor parts = at::empty({tensor.size() * part.numel()}, options);
      tensor.all_gather(part.contiguous().view(-1), parts).wait();
      std::vector<at::Tensor> slices;
      for (const at::Tensor& slice : parts.chunk(tensor.size())) {
        slices.push_back(slice.view(part.sizes()));
      }
      whole = at::cat(slices, cut->dim);
    }
  } else {
    whole = at::empty(whole_.specs[slot].shape, options);
  }
  const std::vector<std::int64_t>& stages = whole_.stages[slot];
  comm::ProcessGroup& pipeline = groups_.along(mesh::Axis::pp);
  const bool is_everywhere = std::ssize(stages) == pipeline.size();
  if (!is_everywhere) pipeline.broadcast(whole, stages.front()).wait();
  return whole;
}

}  // namespace dtrain::parallel
