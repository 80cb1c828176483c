#include "dtrain/parallel/plan/placement.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "dtrain/optim/global_norm.h"

namespace dtrain::parallel {
namespace {

std::int64_t rank_in(const comm::ProcessGroup* group) {
  return group == nullptr ? 0 : group->rank();
}

std::int64_t size_of(const comm::ProcessGroup* group) {
  return group == nullptr ? 1 : group->size();
}

}  // namespace

WholeParameters whole_parameters(const model::Model& model) {
  WholeParameters whole{.specs = model.parameters,
                        .numbers = std::vector<param::ParameterId>(model.parameters.size()),
                        .stages = {}};
  std::iota(whole.numbers.begin(), whole.numbers.end(), param::ParameterId{0});
  whole.stages.assign(model.parameters.size(), {0});
  return whole;
}

Placement::Placement(const model::Model& model, WholeParameters whole, comm::ProcessGroup* tensor,
                     comm::ProcessGroup* pipeline)
    : model_(model), whole_(std::move(whole)), tensor_(tensor), pipeline_(pipeline) {}

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

checkpoint::Replica Placement::replica(param::ParameterId id,
                                       const checkpoint::Replica& data) const {
  const std::vector<std::int64_t>& stages = whole_.stages[static_cast<std::size_t>(number(id))];
  const auto stage = std::find(stages.begin(), stages.end(), rank_in(pipeline_)) - stages.begin();
  const bool is_cut = spec(id).cut.has_value();
  const std::int64_t copies = is_cut ? 1 : size_of(tensor_);
  const std::int64_t copy = is_cut ? 0 : rank_in(tensor_);
  return {.index = (stage * data.count + data.index) * copies + copy,
          .count = static_cast<std::int64_t>(stages.size()) * data.count * copies};
}

// Slices are added up; of equal copies the first counts.
bool Placement::speaks_for(param::ParameterId id) const {
  const bool is_first_stage =
      whole_.stages[static_cast<std::size_t>(number(id))].front() == rank_in(pipeline_);
  return is_first_stage && (spec(id).cut.has_value() || rank_in(tensor_) == 0);
}

at::Tensor Placement::norm(const at::Tensor& squares) const {
  const at::Tensor all =
      at::zeros({static_cast<std::int64_t>(whole_.specs.size())}, squares.options());
  for (param::ParameterId id = 0; id < squares.numel(); ++id) {
    if (speaks_for(id)) all[number(id)].copy_(squares[id]);
  }
  for (comm::ProcessGroup* group : {tensor_, pipeline_}) {
    if (group != nullptr) group->all_reduce(all).wait();
  }
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
      const at::Tensor parts = at::empty({size_of(tensor_) * part.numel()}, options);
      tensor_->all_gather(part.contiguous().view(-1), parts).wait();
      std::vector<at::Tensor> slices;
      for (const at::Tensor& slice : parts.chunk(size_of(tensor_))) {
        slices.push_back(slice.view(part.sizes()));
      }
      whole = at::cat(slices, cut->dim);
    }
  } else {
    whole = at::empty(whole_.specs[slot].shape, options);
  }
  const std::vector<std::int64_t>& stages = whole_.stages[slot];
  const bool is_everywhere = static_cast<std::int64_t>(stages.size()) == size_of(pipeline_);
  if (!is_everywhere) pipeline_->broadcast(whole, stages.front()).wait();
  return whole;
}

}  // namespace dtrain::parallel
