// A BDH with weights large enough that every part of it shows in the logits, and its blocks run by
// hand.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <string>

#include "dtrain/model/bdh/bdh.h"
#include "dtrain/param/arena.h"

namespace dtrain::testing {

inline at::Tensor plain_memory(std::int64_t bytes) {
  return at::zeros({bytes}, at::TensorOptions().dtype(at::kByte));
}

/// Largest difference over the largest expected value.
inline double relative_error(const at::Tensor& found, const at::Tensor& expected) {
  const at::Tensor reference = expected.to(at::kDouble);
  return ((found.to(at::kDouble) - reference).abs().max() / reference.abs().max()).item<double>();
}

struct BdhFixture {
  BdhFixture(const model::bdh::BdhSizes& given, at::ScalarType dtype, std::int64_t length = 64)
      : sizes(given),
        model(model::bdh::make_bdh(given, length)),
        weights(param::ArenaLayout(model->parameters), dtype, plain_memory) {}

  /// Normal weights of deviation 0.5, the same numbers for every dtype.
  void randomise(std::uint64_t seed) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
    weights.flat().copy_(at::randn({weights.flat().numel()}, generator) * 0.5);
  }

  /// The parameter of this exported name, in the exported shape; shares the arena's memory.
  [[nodiscard]] at::Tensor exported(const std::string& name) const {
    for (const param::ParameterId id : model->parameters.ids()) {
      const param::ParameterSpec& spec = model->parameters[id];
      if (spec.name == name) return param::exported_view(spec, weights.view(id));
    }
    throw std::logic_error("no parameter " + name);
  }

  /// How the blocks are run; the defaults are those of evaluation.
  struct Run {
    bool training = false;
    std::uint64_t seed = 0;
    std::int64_t first_sample = 0;
  };

  /// ids (B, T) -> logits (B, T, V), through the blocks.
  [[nodiscard]] at::Tensor logits(const at::Tensor& ids, const Run& run) const {
    const at::NoGradGuard no_grad;
    at::Tensor logits;
    const model::ParameterReader read = [&](param::ParameterId id) { return weights.view(id); };
    const model::Tap tap = [&](std::string_view name, const at::Tensor& value) {
      if (name == "logits") logits = value.clone();
    };
    model::TensorAxis axis;
    const model::BlockContext context{
        .first_sample = at::scalar_tensor(run.first_sample, at::kLong),
        .training = run.training,
        .seed = run.seed,
        .targets = at::zeros_like(ids),
        .use = read,
        .tensor_axis = axis,
        .tap = tap};
    at::Tensor x = ids;
    for (const auto& block : model->blocks) x = block->forward(x, context);
    return logits;
  }
  [[nodiscard]] at::Tensor logits(const at::Tensor& ids) const { return logits(ids, Run{}); }

  model::bdh::BdhSizes sizes;
  std::unique_ptr<model::Model> model;
  param::Arena weights;
};

}  // namespace dtrain::testing
