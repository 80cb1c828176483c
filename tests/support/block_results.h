// Runs a model's blocks on one microbatch.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>
#include <string>
#include <string_view>

#include "dtrain/model/model.h"
#include "dtrain/param/arena.h"

namespace dtrain::testing {

struct BlockResults {
  at::Tensor logits = {};                            ///< (B, T, V)
  at::Tensor loss = {};                              ///< mean over tokens
  std::map<std::string, at::Tensor> gradients = {};  ///< of the loss, in exported shapes
};

/// tokens: (B, T + 1).
inline BlockResults run_blocks(const model::Model& model, const param::Arena& weights,
                               const at::Tensor& tokens) {
  param::ParameterViews leaves;
  for (const param::ParameterId id : model.parameters.ids()) {
    leaves.push_back(weights.view(id).detach().clone().set_requires_grad(true));
  }
  BlockResults results;
  const model::ParameterReader read = [&](param::ParameterId id) { return leaves[id]; };
  const model::Tap tap = [&](std::string_view name, const at::Tensor& value) {
    if (name == "logits") results.logits = value.detach().clone();
  };
  model::TensorAxis axis;
  const std::int64_t length = tokens.size(1) - 1;
  const model::BlockContext context{.first_sample = at::zeros({}, at::kLong),
                                    .training = true,
                                    .targets = tokens.narrow(1, 1, length),
                                    .use = read,
                                    .tensor_axis = axis,
                                    .tap = tap};
  at::Tensor x = tokens.narrow(1, 0, length);
  for (const auto& block : model.blocks) x = block->forward(x, context);
  results.loss = x.mean();
  torch::autograd::backward({results.loss}, {});
  for (const param::ParameterId id : model.parameters.ids()) {
    const param::ParameterSpec& spec = model.parameters[id];
    results.gradients.emplace(spec.name, param::exported_view(spec, leaves[id].grad()));
  }
  return results;
}

}  // namespace dtrain::testing
