#include "dtrain/optim/adamw.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "support/naive_trainer.h"
#include "support/values.h"

namespace dtrain::optim {
namespace {

using testing::ScalarAdamW;

at::Tensor plain_memory(std::int64_t bytes) { return at::zeros({bytes}, at::kByte); }

param::ParameterSpec spec(std::string name, std::int64_t count, bool decay) {
  return {.name = std::move(name),
          .shape = {count},
          .export_view = {count},
          .export_order = {0},
          .decay = decay};
}

// Neighbours that decay alike, one that does not, and sizes that leave padding.
const std::vector<param::ParameterSpec> kSpecs{spec("a", 100, true), spec("b", 64, true),
                                               spec("c", 7, false), spec("d", 130, true)};

struct Optimized {
  explicit Optimized(const AdamWOptions& options, at::ScalarType dtype = at::kDouble)
      : layout(kSpecs),
        weights(layout, dtype, plain_memory),
        gradients(layout, dtype, plain_memory),
        optimizer(layout, kSpecs, 0, dtype, plain_memory, options) {
    fill(weights, 0, 1);
  }

  void fill(param::Arena& arena, std::int64_t which, double scale) {
    for (param::ParameterId id = 0; id < layout.num_parameters(); ++id) {
      const at::Tensor view = arena.view(id);
      view.copy_(testing::values_of(which * 10 + id, view.numel(), at::kDouble) * scale * 1e-5);
    }
  }

  param::ArenaLayout layout;
  param::Arena weights;
  param::Arena gradients;
  AdamW optimizer;
};

TEST_CASE("AdamW is the published rule, number by number, with decay where the spec says so") {
  const config::TrainConfig train{.beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .freeze = {}};
  Optimized run({.beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.3, .frozen = {}});
  std::vector<std::vector<ScalarAdamW>> scalars;
  std::vector<at::Tensor> expected;
  for (param::ParameterId id = 0; id < 4; ++id) {
    expected.push_back(run.weights.view(id).clone());
    scalars.emplace_back(static_cast<std::size_t>(expected.back().numel()));
  }
  for (std::int64_t step = 1; step <= 5; ++step) {
    const double lr = 0.01 * static_cast<double>(step);
    run.fill(run.gradients, step, 3);
    run.optimizer.step(run.weights, run.gradients, lr);
    for (std::size_t id = 0; id < 4; ++id) {
      const auto parameter = static_cast<param::ParameterId>(id);
      auto* weight = expected[id].data_ptr<double>();
      const auto* gradient = run.gradients.view(parameter).const_data_ptr<double>();
      for (std::size_t i = 0; i < scalars[id].size(); ++i) {
        weight[i] = scalars[id][i].update(weight[i], gradient[i], lr, train,
                                          kSpecs[id].decay ? 0.3 : 0.0, step);
      }
      INFO("step " << step << ", " << kSpecs[id].name);
      CHECK(testing::largest_error(run.weights.view(parameter), expected[id]) < 1e-13);
    }
  }
  const double first = run.optimizer.state()[0].arena->view(3)[129].item<double>();
  const double second = run.optimizer.state()[1].arena->view(3)[129].item<double>();
  CHECK(first == Approx(scalars[3][129].first_moment).epsilon(1e-12));
  CHECK(second == Approx(scalars[3][129].second_moment).epsilon(1e-12));
  CHECK(run.optimizer.num_updates().item<float>() == 5);
}

TEST_CASE("A frozen parameter is neither updated nor decayed; the others are as without it") {
  Optimized frozen({.frozen = {1}});
  Optimized free({});
  const at::Tensor before = frozen.weights.view(1).clone();
  for (std::int64_t step = 1; step <= 3; ++step) {
    for (Optimized* run : {&frozen, &free}) {
      run->fill(run->gradients, step, 1);
      run->optimizer.step(run->weights, run->gradients, 0.1);
    }
  }
  CHECK(at::equal(frozen.weights.view(1), before));
  CHECK_FALSE(at::equal(free.weights.view(1), before));
  for (const param::ParameterId id : {0, 2, 3}) {
    CHECK(testing::same_bits(frozen.weights.view(id), free.weights.view(id)));
  }
  CHECK(frozen.optimizer.state()[0].arena->view(1).abs().max().item<double>() == 0);
}

TEST_CASE("An update leaves the gradients and the padding as they are") {
  Optimized run({}, at::kFloat);
  run.fill(run.gradients, 1, 1);
  const at::Tensor gradients = run.gradients.flat().clone();
  run.optimizer.step(run.weights, run.gradients, 0.1);
  CHECK(testing::same_bits(run.gradients.flat(), gradients));
  const at::Tensor padding = run.weights.flat().narrow(0, 100, 28);
  CHECK(padding.abs().max().item<float>() == 0);
}

TEST_CASE("Shards are updated to the bits that the whole has") {
  Optimized whole({.frozen = {1}}, at::kFloat);
  for (const std::int64_t count : {2, 4, 8}) {
    Optimized reference({.frozen = {1}}, at::kFloat);
    const param::ArenaLayout layout(kSpecs, {.unit_begins = {0, 3}, .num_shards = count});
    for (std::int64_t step = 1; step <= 3; ++step) {
      reference.fill(reference.gradients, step, 3);
      reference.optimizer.step(reference.weights, reference.gradients, 0.1);
    }
    for (std::int64_t shard = 0; shard < count; ++shard) {
      INFO("shard " << shard << " of " << count);
      param::Arena weights(layout, at::kFloat, plain_memory);
      param::Arena gradients(layout, at::kFloat, plain_memory);
      const auto take = [&](const param::Arena& from, const param::Arena& to) {
        for (param::ParameterId id = 0; id < 4; ++id) to.view(id).copy_(from.view(id));
      };
      take(whole.weights, weights);
      AdamW optimizer(layout, kSpecs, shard, at::kFloat, plain_memory, {.frozen = {1}});
      for (std::int64_t step = 1; step <= 3; ++step) {
        whole.fill(whole.gradients, step, 3);
        take(whole.gradients, gradients);
        optimizer.step(weights, gradients, 0.1);
      }
      for (param::ParameterId id = 0; id < 4; ++id) {
        const param::ElementRange all = layout.range(id);
        for (const param::ElementRange part : layout.owned_by(shard)) {
          const param::ElementRange own = common(all, part);
          if (own.is_empty()) continue;
          CHECK(testing::same_bits(weights.slice(own), reference.weights.view(id).narrow(
                                                           0, own.begin - all.begin, own.size())));
        }
      }
    }
  }
}

}  // namespace
}  // namespace dtrain::optim
