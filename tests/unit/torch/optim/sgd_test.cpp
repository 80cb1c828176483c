#include "dtrain/optim/optimizers.h"
#include "optimized.h"
#include "support/engine_run.h"

namespace dtrain::optim::sgd_test {
namespace {

using SgdRun = Optimized<Sgd, SgdOptions>;

// Five updates of six roundings, here and there.
const double kBound = testing::rounding_bound(at::kDouble, 2 * 5 * 6);

// One number's update, as torch.optim.SGD documents it: its first buffer is the gradient itself.
struct ScalarSgd {
  double buffer = 0;
  bool has_buffer = false;

  double update(double weight, double gradient, double lr, const SgdOptions& options) {
    const double with_decay = gradient + options.weight_decay * weight;
    buffer = has_buffer ? options.momentum * buffer + with_decay : with_decay;
    has_buffer = true;
    return weight - lr * (options.momentum == 0 ? with_decay : buffer);
  }
};

TEST_CASE("SGD is the published rule, number by number, with decay where the spec says so") {
  const double momentum = GENERATE(0.8, 0.0);
  const SgdOptions options{.momentum = momentum, .weight_decay = 0.3};
  const SgdOptions without_decay{.momentum = momentum, .weight_decay = 0};
  SgdRun run(options);
  std::vector<std::vector<ScalarSgd>> scalars;
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
        weight[i] = scalars[id][i].update(weight[i], gradient[i], lr,
                                          kSpecs[parameter].decay ? options : without_decay);
      }
      INFO("momentum " << momentum << ", step " << step << ", " << kSpecs[parameter].name);
      CHECK(testing::largest_error(run.weights.view(parameter), expected[id]) <= kBound);
    }
  }
  CHECK(run.optimizer.num_updates().item<float>() == 5);
  REQUIRE(run.optimizer.state().size() == (momentum == 0 ? 0 : 1));
  if (momentum == 0) return;
  CHECK(run.optimizer.state()[0].name == "momentum_buffer");
  at::Tensor buffers = at::empty({130}, at::kDouble);
  for (std::int64_t i = 0; i < 130; ++i) {
    buffers[i] = scalars[3][static_cast<std::size_t>(i)].buffer;
  }
  CHECK(testing::largest_error(run.optimizer.state()[0].arena->view(3_p), buffers) <= kBound);
}

TEST_CASE("An update that may not be touches no element on the CPU") {
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

TEST_CASE("SGD leaves a frozen parameter, the gradients and the padding as they are") {
  SgdRun run({}, at::kFloat, {1_p});
  run.fill(run.gradients, 1, 1);
  const at::Tensor gradients = run.gradients.flat().clone();
  const at::Tensor frozen = run.weights.view(1_p).clone();
  const at::Tensor free = run.weights.view(0_p).clone();
  run.optimizer.step(run.weights, run.gradients, 0.1, kMayUpdate);
  CHECK(testing::same_bits(run.gradients.flat(), gradients));
  CHECK(testing::same_bits(run.weights.view(1_p), frozen));
  CHECK_FALSE(at::equal(run.weights.view(0_p), free));
  CHECK(run.weights.flat().narrow(0, 100, 28).abs().max().item<float>() == 0);
  CHECK_FALSE(run.optimizer.state()[0].arena->holds(run.layout.range(1_p)));
}

TEST_CASE("SGD updates shards to the bits that the whole has") {
  check_shards<Sgd, SgdOptions>({}, {1_p});
}

}  // namespace
}  // namespace dtrain::optim::sgd_test
