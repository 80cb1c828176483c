#include "dtrain/optim/optimizers.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <cstdint>
#include <vector>

#include "support/ids.h"
#include "support/oracles/naive_trainer.h"
#include "support/oracles/rounding.h"
#include "support/values.h"

namespace dtrain::optim::optimizers_test {
namespace {

using testing::ScalarAdamW;
using testing::spec;
using testing::operator""_p;
using testing::operator""_s;

// Adjacent parameters with equal decay, one without decay, and sizes that need padding.
const param::ParameterSpecs kSpecs{spec("a", 100, true), spec("b", 64, true), spec("c", 7, false),
                                   spec("d", 130, true)};
const at::Tensor kMayUpdate = at::scalar_tensor(true, at::kBool);

// Weights, gradients and an optimizer.
template <typename Rule, typename Options>
struct Optimized {
  explicit Optimized(const Options& options, at::ScalarType dtype = at::kDouble)
      : layout(kSpecs),
        weights(layout, dtype, param::private_memory),
        gradients(layout, dtype, param::private_memory),
        optimizer({layout, kSpecs, 0_s, dtype, param::private_memory}, options) {
    fill(weights, 0, 1);
  }

  void fill(param::Arena& arena, std::int64_t which, double scale) {
    for (const param::ParameterId id : layout.parameters()) {
      const at::Tensor view = arena.view(id);
      view.copy_(testing::values_of(which * 10 + id.value(), view.numel(), at::kDouble) * scale *
                 1e-5);
    }
  }

  param::ArenaLayout layout;
  param::Arena weights;
  param::Arena gradients;
  Rule optimizer;
};

using AdamWRun = Optimized<AdamW, AdamWOptions>;
using SgdRun = Optimized<Sgd, SgdOptions>;

// Compares five updates with the scalar rule `update(scalar, weight, gradient, lr, decays, step)`.
// Returns the rule's state of the last parameter.
template <typename Scalar, typename Run, typename Update>
std::vector<Scalar> check_rule(Run& run, double bound, const Update& update) {
  std::vector<std::vector<Scalar>> scalars;
  std::vector<at::Tensor> expected;
  for (const param::ParameterId id : kSpecs.ids()) {
    expected.push_back(run.weights.view(id).clone());
    scalars.emplace_back(static_cast<std::size_t>(expected.back().numel()));
  }
  for (std::int64_t step = 1; step <= 5; ++step) {
    const double lr = 0.01 * static_cast<double>(step);
    run.fill(run.gradients, step, 3);
    run.optimizer.step(run.weights, run.gradients, lr, kMayUpdate);
    for (const param::ParameterId id : kSpecs.ids()) {
      const auto index = static_cast<std::size_t>(id.value());
      auto* weight = expected[index].data_ptr<double>();
      const at::Tensor gradients = run.gradients.view(id);
      const auto* gradient = gradients.const_data_ptr<double>();
      for (std::size_t i = 0; i < scalars[index].size(); ++i) {
        weight[i] = update(scalars[index][i], weight[i], gradient[i], lr, kSpecs[id].decay, step);
      }
      INFO("step " << step << ", " << kSpecs[id].name);
      CHECK(testing::largest_error(run.weights.view(id), expected[index]) <= bound);
    }
  }
  const at::Tensor num_updates = run.optimizer.num_updates();
  CHECK(num_updates.item<float>() == 5);
  return scalars.back();
}

// Compares the optimizer's state array of the last parameter with the scalar rule's state.
template <typename Scalar>
void check_array(const at::Tensor& found, const std::vector<Scalar>& scalars,
                 double Scalar::*number, double bound) {
  std::vector<double> expected;
  for (const Scalar& scalar : scalars) expected.push_back(scalar.*number);
  CHECK(testing::largest_error(found, at::tensor(expected, at::kDouble)) <= bound);
}

TEST_CASE("AdamW equals the published rule per element, with decay where the spec says so") {
  // Five updates of about 20 roundings on both sides. The corrections are 1 minus a power of beta2,
  // 0.95, which amplifies its rounding error by up to 1 / 0.05.
  const double bound = testing::rounding_bound(at::kDouble, 2 * 5 * 20) / 0.05;
  const config::TrainConfig train{.lr = {},
                                  .beta1 = 0.8,
                                  .beta2 = 0.95,
                                  .eps = 1e-6,
                                  .warmup_steps = {},
                                  .min_lr = {},
                                  .freeze = {},
                                  .no_decay = {}};
  AdamWRun run({.beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.3});
  const auto scalars = check_rule<ScalarAdamW>(
      run, bound,
      [&](ScalarAdamW& scalar, double weight, double gradient, double lr, bool decays,
          std::int64_t step) {
        return scalar.update(weight, gradient, lr, train, decays ? 0.3 : 0.0, step);
      });
  const auto state = run.optimizer.state();
  check_array(state[0].arena->view(3_p), scalars, &ScalarAdamW::first_moment, bound);
  check_array(state[1].arena->view(3_p), scalars, &ScalarAdamW::second_moment, bound);
}

TEST_CASE("AdamW's bias correction equals the rule after very many updates") {
  const std::int64_t step = GENERATE(1'000, 12'345, 16'000'000);
  const config::TrainConfig train{};
  AdamWRun run({.beta2 = train.beta2, .weight_decay = 0});
  run.fill(run.gradients, 1, 1);
  run.optimizer.num_updates().fill_(step - 1);
  const at::Tensor expected = run.weights.view(3_p).clone();
  ScalarAdamW scalar;
  const double gradient = run.gradients.view(3_p)[7].item<double>();
  const double weight = scalar.update(expected[7].item<double>(), gradient, 0.1, train, 0, step);
  run.optimizer.step(run.weights, run.gradients, 0.1, kMayUpdate);
  // Subtracting a power of beta2 near 1 from 1 amplifies its rounding error by up to 1 / (1 -
  // beta2); after many updates it is 0.
  const double magnified = testing::rounding_bound(at::kDouble, 20) / (1 - train.beta2);
  CHECK(run.weights.view(3_p)[7].item<double>() == Approx(weight).epsilon(magnified));
}

template <typename Run>
void check_untouched() {
  Run run({}, at::kFloat);
  run.fill(run.gradients, 1, 1);
  const at::Tensor gradients = run.gradients.flat().clone();
  run.optimizer.step(run.weights, run.gradients, 0.1, kMayUpdate);
  CHECK(testing::same_bits(run.gradients.flat(), gradients));
  const at::Tensor padding = run.weights.flat().narrow(0, 100, 28);
  CHECK(padding.count_nonzero().item<std::int64_t>() == 0);
}

TEST_CASE("An update does not change gradients or padding") {
  check_untouched<AdamWRun>();
  check_untouched<SgdRun>();
}

// The update of one element as documented by torch.optim.SGD: the first buffer is the gradient.
struct ScalarSgd {
  double buffer = 0;
  bool has_buffer = false;

  double update(double weight, double gradient, double lr, double momentum, double decay) {
    const double with_decay = gradient + decay * weight;
    buffer = has_buffer ? momentum * buffer + with_decay : with_decay;
    has_buffer = true;
    return weight - lr * (momentum == 0 ? with_decay : buffer);
  }
};

TEST_CASE("SGD equals the published rule per element, with decay where the spec says so") {
  // Five updates of six roundings on both sides.
  const double bound = testing::rounding_bound(at::kDouble, 2 * 5 * 6);
  const double momentum = GENERATE(0.8, 0.0);
  SgdRun run({.momentum = momentum, .weight_decay = 0.3});
  const auto scalars = check_rule<ScalarSgd>(
      run, bound,
      [&](ScalarSgd& scalar, double weight, double gradient, double lr, bool decays, std::int64_t) {
        return scalar.update(weight, gradient, lr, momentum, decays ? 0.3 : 0.0);
      });
  const auto state = run.optimizer.state();
  REQUIRE(state.size() == (momentum == 0 ? 0 : 1));
  if (momentum == 0) return;
  CHECK(state[0].name == "momentum_buffer");
  check_array(state[0].arena->view(3_p), scalars, &ScalarSgd::buffer, bound);
}

TEST_CASE("values_per_element equals the number of state values per element") {
  const OptimizerOptions options =
      GENERATE(OptimizerOptions(AdamWOptions{}), OptimizerOptions(SgdOptions{}),
               OptimizerOptions(SgdOptions{.momentum = 0}));
  const param::ArenaLayout layout(kSpecs);
  const auto optimizer =
      make_optimizer({layout, kSpecs, 0_s, at::kFloat, param::private_memory}, options);
  CHECK(std::ssize(optimizer->state()) == values_per_element(options));
}

TEST_CASE("With may_update false, the CPU touches no element") {
  struct Counting final : UpdateWindow {
    void before(param::ElementRange, param::ElementRange) override { ++ranges; }
    void after(param::ElementRange) override {}
    at::Tensor values(const param::Arena& arena, param::ElementRange range) override {
      return arena.slice(range);
    }
    int ranges = 0;
  };
  SgdRun run({.momentum = 0.9});
  Counting window;
  run.optimizer.step(run.weights, run.gradients, 0.1, at::zeros({}, at::kBool), &window);
  CHECK(window.ranges == 0);
  run.optimizer.step(run.weights, run.gradients, 0.1, kMayUpdate, &window);
  CHECK(window.ranges > 0);
}

}  // namespace
}  // namespace dtrain::optim::optimizers_test
