// A BDH run forward and back by ranks that hold a part of it each, and what it is compared with:
// the same weights in one model.
#pragma once

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/base/checksum.h"
#include "dtrain/mesh/mesh_groups.h"
#include "dtrain/model/bdh/bdh.h"
#include "dtrain/model/bdh/bdh_partition.h"
#include "dtrain/parallel/engine/block_runner.h"
#include "dtrain/parallel/tensor/splits.h"
#include "support/action_ids.h"
#include "support/local_ranks.h"
#include "support/rounding.h"

namespace dtrain::testing {

/// A model, the ranks that share it, and how it is run.
struct SplitCase {
  model::bdh::BdhSizes sizes;
  std::int64_t tp = 1;
  bool splits_vocab = false;
  at::ScalarType dtype = at::kDouble;
  parallel::RecomputePlan recompute = {};
  model::Computation computation = {};
  at::ScalarType rounded_to = at::kDouble;  ///< weights, before they take `dtype`
  double weight_scale = 0.5;
  double relative = 0;  ///< by how much of itself each weight is off, as in disturbed()
  std::uint64_t draw = 0;
};

/// "3 all_reduce of 24 float64".
using CallCounts = std::map<std::string, std::int64_t>;

/// The results of one rank in a microbatch.
struct SplitResult {
  at::Tensor losses;                            ///< (B, T)
  std::map<std::string, at::Tensor> gradients;  ///< by parameter, of the rank's slice
  std::map<std::string, at::Tensor> taps;
  at::Tensor evaluated;  ///< losses (B, T) without dropout
  param::ParameterSpecs specs;
  CallCounts axis_calls;  ///< of forward and backward
  CallCounts head_calls;
};

/// Normal values of a whole parameter, from its name.
inline at::Tensor whole_weight(const param::ParameterSpec& spec, double scale) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(base::hash_text(spec.name) % 1000);
  return at::randn(spec.whole_shape(), generator, at::kDouble).mul(scale);
}

/// The slice of a whole parameter that a rank holds.
inline at::Tensor slice_of(const param::ParameterSpec& spec, const at::Tensor& whole) {
  if (!spec.cut) return whole;
  return whole.narrow(spec.cut->dim, spec.cut->begin,
                      spec.shape[static_cast<std::size_t>(spec.cut->dim)]);
}

inline CallCounts counts_of(const comm::ProcessGroup& group) {
  CallCounts counts;
  for (const comm::CallRecord& call : group.calls().records()) {
    ++counts[fmt::format("{} of {} {}", call.op, call.count, at::toString(call.dtype))];
  }
  return counts;
}

/// Sums in float64.
class WideGradients final : public param::GradientMemory {
 public:
  explicit WideGradients(const param::ParameterViews& weights) : weights_(weights) {}
  param::GradientPlace gradient_of(param::ParameterId id) override {
    at::Tensor& sum = sums[id];
    const at::Tensor& weight = weights_[id];
    if (!sum.defined()) sum = at::zeros(weight.sizes(), at::kDouble);
    return {.view = sum, .is_first = false};
  }
  std::map<param::ParameterId, at::Tensor> sums;

 private:
  const param::ParameterViews& weights_;
};

/// Two sequences of seven tokens, forward and backward, then evaluated.
inline SplitResult run_part(const SplitCase& c, const model::TensorPlace& place,
                            const mesh::MeshGroups& groups) {
  constexpr std::int64_t kSequences = 2;
  constexpr std::int64_t kLength = 7;
  const auto model = model::bdh::make_bdh(c.sizes, kLength, place, c.computation);
  param::ParameterViews weights;
  for (const param::ParameterSpec& spec : model->parameters) {
    const at::Tensor rounded = whole_weight(spec, c.weight_scale).to(c.rounded_to);
    const at::Tensor whole = disturbed(rounded.to(at::kDouble), c.relative, c.draw);
    weights.push_back(slice_of(spec, whole).contiguous().to(c.dtype));
  }
  const std::unique_ptr<model::TensorAxis> axis = parallel::make_tensor_axis(groups);
  WideGradients gradients(weights);
  parallel::BlockRunner runner(*model, weights, gradients, *axis,
                               {.seed = 77,
                                .buffer_dtype = c.dtype == at::kDouble ? at::kDouble : at::kFloat,
                                .frozen = {},
                                .recompute = c.recompute});
  SplitResult result;
  runner.set_tap([&](std::string_view name, const at::Tensor& value) {
    result.taps[std::string(name)] = value.detach().clone();
  });
  auto generator = at::make_generator<at::CPUGeneratorImpl>(std::uint64_t{22});
  const at::Tensor ids = at::randint(c.sizes.vocab, {kSequences, kLength}, generator, at::kLong);
  const parallel::MicrobatchInput input{
      .ids = ids, .targets = ids.roll(-1, 1), .first_sample = at::scalar_tensor(5, at::kLong)};
  runner.begin(0_m, input);
  for (const model::BlockId block : model->blocks.ids()) {
    result.losses = runner.forward(block, 0_m);
  }
  for (model::BlockId block = model->blocks.end_id(); block > model::BlockId(0);) {
    runner.backward(--block, 0_m, 1.0 / 14, [](param::ParameterId) {});
  }
  result.axis_calls = counts_of(groups.along(mesh::Axis::tp));
  result.head_calls = counts_of(*groups.tensor_subgroups().front());
  for (const auto& [id, gradient] : gradients.sums) {
    result.gradients[model->parameters[id].name] = gradient;
  }
  runner.set_training(false);
  runner.begin(0_m, input);
  for (const model::BlockId block : model->blocks.ids()) {
    result.evaluated = runner.forward(block, 0_m);
  }
  result.specs = model->parameters;
  return result;
}

/// On c.tp ranks that are threads; by rank.
inline std::vector<SplitResult> run_split(const SplitCase& c) {
  std::vector<SplitResult> results(static_cast<std::size_t>(c.tp));
  on_threads(c.tp, [&](comm::World& world) {
    const mesh::MeshGroups groups(world, mesh::DeviceMesh({{mesh::Axis::tp, c.tp}}),
                                  {.tensor = model::bdh::tensor_subgroups(c.sizes, c.tp)});
    results[static_cast<std::size_t>(world.rank())] =
        run_part(c, {.index = world.rank(), .size = c.tp, .splits_vocab = c.splits_vocab}, groups);
  });
  return results;
}

/// Without any splitting.
inline SplitResult run_whole(SplitCase c) {
  c.tp = 1;
  c.splits_vocab = false;
  c.recompute = {};
  return run_split(c).front();
}

/// What a microbatch of run_part rounds one after another in `dtype`: ten results of a level, three
/// of embedding and head, and a gradient for each. Products of 16-bit numbers are summed in float32;
/// others round each term, of which a level's sum over neurons has most.
inline double roundings_of(const SplitCase& c, at::ScalarType dtype) {
  const auto results = static_cast<double>(2 * (10 * c.sizes.levels + 3));
  const auto terms = static_cast<double>(c.sizes.heads * c.sizes.neurons);
  return at::isReducedFloatingType(dtype) ? results : results * terms;
}

/// Largest difference over the largest expected value.
inline double error_of(const at::Tensor& found, const at::Tensor& expected) {
  const at::Tensor reference = expected.to(at::kDouble);
  return ((found.to(at::kDouble) - reference).abs().max() / reference.abs().max()).item<double>();
}

}  // namespace dtrain::testing
