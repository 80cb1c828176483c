#include <catch2/catch.hpp>

#include "dtrain/optim/optimizers.h"
#include "optimized.h"
#include "support/naive_trainer.h"

namespace dtrain::optim::adamw_test {
namespace {

using testing::ScalarAdamW;

using AdamWRun = Optimized<AdamW, AdamWOptions>;

// Five updates of some 20 roundings, here and there. The corrections are 1 less a power of beta2,
// 0.95, which magnifies its rounding by up to 1 / 0.05.
const double kBound = testing::rounding_bound(at::kDouble, 2 * 5 * 20) / 0.05;

TEST_CASE("AdamW is the published rule, number by number, with decay where the spec says so") {
  const config::TrainConfig train{.beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .freeze = {}};
  AdamWRun run({.beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.3});
  std::vector<std::vector<ScalarAdamW>> scalars;
  std::vector<at::Tensor> expected;
  for (const param::ParameterId id : kSpecs.ids()) {
    expected.push_back(run.weights.view(id).clone());
    scalars.emplace_back(static_cast<std::size_t>(expected.back().numel()));
  }
  for (std::int64_t step = 1; step <= 5; ++step) {
    const double lr = 0.01 * static_cast<double>(step);
    run.fill(run.gradients, step, 3);
    run.optimizer.step(run.weights, run.gradients, lr, kMayUpdate);
    for (std::size_t id = 0; id < 4; ++id) {
      const param::ParameterId parameter(static_cast<std::int64_t>(id));
      auto* weight = expected[id].data_ptr<double>();
      const auto* gradient = run.gradients.view(parameter).const_data_ptr<double>();
      for (std::size_t i = 0; i < scalars[id].size(); ++i) {
        weight[i] = scalars[id][i].update(weight[i], gradient[i], lr, train,
                                          kSpecs[parameter].decay ? 0.3 : 0.0, step);
      }
      INFO("step " << step << ", " << kSpecs[parameter].name);
      CHECK(testing::largest_error(run.weights.view(parameter), expected[id]) <= kBound);
    }
  }
  at::Tensor first = at::empty({130}, at::kDouble);
  at::Tensor second = at::empty({130}, at::kDouble);
  for (std::int64_t i = 0; i < 130; ++i) {
    first[i] = scalars[3][static_cast<std::size_t>(i)].first_moment;
    second[i] = scalars[3][static_cast<std::size_t>(i)].second_moment;
  }
  CHECK(testing::largest_error(run.optimizer.state()[0].arena->view(3_p), first) <= kBound);
  CHECK(testing::largest_error(run.optimizer.state()[1].arena->view(3_p), second) <= kBound);
  CHECK(run.optimizer.num_updates().item<float>() == 5);
}

TEST_CASE("AdamW corrects its moments after very many updates as the rule does") {
  const std::int64_t step = GENERATE(1'000, 12'345, 16'000'000);
  const config::TrainConfig train{};
  AdamWRun run({.weight_decay = 0});
  run.fill(run.gradients, 1, 1);
  run.optimizer.num_updates().fill_(step - 1);
  const at::Tensor expected = run.weights.view(3_p).clone();
  ScalarAdamW scalar;
  const double gradient = run.gradients.view(3_p)[7].item<double>();
  const double weight = scalar.update(expected[7].item<double>(), gradient, 0.1, train, 0, step);
  run.optimizer.step(run.weights, run.gradients, 0.1, kMayUpdate);
  // A power of beta2 near 1 is subtracted from 1, which magnifies its rounding by up to 1 / (1 -
  // beta2); after many updates it is 0.
  const double magnified = testing::rounding_bound(at::kDouble, 20) / (1 - train.beta2);
  CHECK(run.weights.view(3_p)[7].item<double>() == Approx(weight).epsilon(magnified));
}

TEST_CASE("A frozen parameter has no moments, no update and no decay; others are as without it") {
  AdamWRun frozen({}, at::kDouble, {1_p});
  AdamWRun free({});
  const at::Tensor before = frozen.weights.view(1_p).clone();
  for (std::int64_t step = 1; step <= 3; ++step) {
    for (AdamWRun* run : {&frozen, &free}) {
      run->fill(run->gradients, step, 1);
      run->optimizer.step(run->weights, run->gradients, 0.1, kMayUpdate);
    }
  }
  CHECK(at::equal(frozen.weights.view(1_p), before));
  CHECK_FALSE(at::equal(free.weights.view(1_p), before));
  for (const param::ParameterId id : {0_p, 2_p, 3_p}) {
    CHECK(testing::same_bits(frozen.weights.view(id), free.weights.view(id)));
  }
  for (const NamedArena& moments : frozen.optimizer.state()) {
    CHECK_FALSE(moments.arena->holds(frozen.layout.range(1_p)));
    CHECK(moments.arena->flat().numel() == frozen.layout.num_elements() - 64);
  }
}

TEST_CASE("An update leaves the gradients and the padding as they are") {
  AdamWRun run({}, at::kFloat);
  run.fill(run.gradients, 1, 1);
  const at::Tensor gradients = run.gradients.flat().clone();
  run.optimizer.step(run.weights, run.gradients, 0.1, kMayUpdate);
  CHECK(testing::same_bits(run.gradients.flat(), gradients));
  const at::Tensor padding = run.weights.flat().narrow(0, 100, 28);
  CHECK(padding.abs().max().item<float>() == 0);
}

TEST_CASE("AdamW updates shards to the bits that the whole has") {
  check_shards<AdamW, AdamWOptions>({}, {1_p});
}

TEST_CASE("An update that may not be changes nothing and is not counted") {
  AdamWRun run({});
  run.fill(run.gradients, 1, 3);
  const at::Tensor before = run.weights.flat().clone();
  run.optimizer.step(run.weights, run.gradients, 0.1, at::scalar_tensor(false, at::kBool));
  CHECK(testing::same_bits(run.weights.flat(), before));
  CHECK(run.optimizer.num_updates().item<float>() == 0);
  run.optimizer.step(run.weights, run.gradients, 0.1, kMayUpdate);
  CHECK_FALSE(testing::same_bits(run.weights.flat(), before));
  CHECK(run.optimizer.num_updates().item<float>() == 1);
}

}  // namespace
}  // namespace dtrain::optim::adamw_test
