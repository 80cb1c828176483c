// A BDH whose weights are large enough that every part affects the logits, and functions that run
// its blocks.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

#include "dtrain/model/bdh/bdh.h"
#include "dtrain/param/arena.h"
#include "support/oracles/rounding.h"
#include "support/values.h"

namespace dtrain::testing {

struct BdhFixture {
  BdhFixture(const model::bdh::BdhSizes& given, at::ScalarType dtype, std::int64_t length = 64)
      : sizes(given),
        model(model::bdh::make_bdh(given, length)),
        weights(param::ArenaLayout(model->parameters), dtype, param::private_memory) {}

  /// Normal weights with deviation 0.5, equal for every dtype.
  void randomise(std::uint64_t seed) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
    weights.flat().copy_(at::randn({weights.flat().numel()}, generator) * 0.5);
  }

  /// The same model in float64, with each weight perturbed by the fraction `relative`.
  [[nodiscard]] BdhFixture widened(double relative = 0, std::uint64_t draw = 0) const {
    BdhFixture wide(sizes, at::kDouble);
    wide.weights.flat().copy_(disturbed(weights.flat().to(at::kDouble), relative, draw));
    return wide;
  }

  /// Returns a parameter by its exported name, in the exported shape; shares the arena's memory.
  [[nodiscard]] at::Tensor exported(const std::string& name) const {
    for (const param::ParameterId id : model->parameters.ids()) {
      const param::ParameterSpec& spec = model->parameters[id];
      if (spec.name == name) return param::exported_view(spec, weights.view(id));
    }
    throw std::logic_error("no parameter " + name);
  }

  /// How to run the blocks; defaults to evaluation.
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

/// The number of sequential roundings of a forward pass in `dtype`: ten per level, three for
/// embedding and head. Products of 16-bit values accumulate in float32 and are rounded once; other
/// dtypes round each term; the longest sum is a head's scores times values.
inline double roundings_of_forward(const model::bdh::BdhSizes& sizes, std::int64_t length,
                                   at::ScalarType dtype) {
  const auto results = static_cast<double>(10 * sizes.layers + 3);
  const std::int64_t terms = std::max(length, sizes.heads * sizes.neurons);
  return at::isReducedFloatingType(dtype) ? results : results * static_cast<double>(terms);
}

/// Bounds the largest_error of the fixture's logits for ids (B, T), computed in `dtype`.
inline double logits_bound(const BdhFixture& fixture, const at::Tensor& ids, at::ScalarType dtype,
                           const BdhFixture::Run& run = {}) {
  const Disturbance disturbance(dtype, roundings_of_forward(fixture.sizes, ids.size(-1), dtype));
  const at::Tensor exact = fixture.widened().logits(ids, run);
  double error = 0;
  for (std::uint64_t draw = 1; draw <= Disturbance::kDraws; ++draw) {
    const BdhFixture off = fixture.widened(disturbance.relative, draw);
    error = std::max(error, largest_error(off.logits(ids, run), exact));
  }
  return error * disturbance.scale;
}

}  // namespace dtrain::testing
