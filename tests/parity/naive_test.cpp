// Compares the engine with the naive trainer: finds errors that all layouts share, which equal bits
// cannot show.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "dtrain/config/bdh/settings.h"
#include "support/engine_run.h"
#include "support/oracles/naive_trainer.h"
#include "support/oracles/rounding.h"
#include "support/oracles/sensitivity.h"
#include "support/ranks/local_ranks.h"
#include "support/settings.h"
#include "support/values.h"

namespace dtrain::testing::naive_test {
namespace {

config::Config float64_config(bool tie_layers) {
  config::Config config = tiny_config();
  set(config, "machine.dtype", "float64");
  config::bdh::settings_of(config.model).tie_layers = tie_layers;
  return config;
}

TEST_CASE("Loss, norm, weights and moments are those of the naive trainer") {
  const config::Config config = float64_config(GENERATE(true, false));
  INFO("tied levels " << config::bdh::settings_of(config.model).tie_layers);
  const Trace naive = naive_train(laid_out(config, 1, 4));
  REQUIRE(naive.norms.front() > config.train.grad_clip);  // clipping is active
  const TraceBound bound = rounding_bound_of(config, at::kDouble);
  check_near(train_on_threads(laid_out(config, 1, 4)).front(), naive, bound);
  check_near(train_on_threads(laid_out(config, 4, 1)).front(), naive, bound);
  check_near(train_on_threads(laid_out(config, 2, 2)).front(), naive, bound);
}

TEST_CASE("A run with frozen parameters is the naive trainer's") {
  config::Config config = float64_config(true);
  config.train.freeze = {"encoder_v", "lm_head"};
  check_near(train_on_threads(laid_out(config, 2, 2)).front(), naive_train(laid_out(config, 2, 2)),
             rounding_bound_of(config, at::kDouble));
}

TEST_CASE("Without clipping, gradients reach the optimizer unchanged") {
  config::Config config = float64_config(true);
  config.train.grad_clip = 0;
  check_near(train_on_threads(laid_out(config, 2, 1)).front(), naive_train(laid_out(config, 2, 1)),
             rounding_bound_of(config, at::kDouble));
}

// Both sides use the same weights and blocks; only the summation differs: eight microbatches, each
// with three uses of a tied parameter, then one division.
TEST_CASE("Reduced gradients are the naive reducer's sum") {
  const std::string dtype = GENERATE("float32", "float64");
  config::Config config = laid_out(tiny_config(), 4, 2);
  set(config, "machine.dtype", dtype);
  config.machine.kernels = config::Kernels::plain;  // autograd gives the naive reducer's gradients
  const double tolerance = rounding_bound(dtype == "float32" ? at::kFloat : at::kDouble, 8 * 3 + 1);
  on_threads(4, [&](comm::World& world) {
    EngineRun run(config, world);
    job::Job& job = run.job();
    const auto split = data::open_split(
        {.train = config.data.train, .validation = "", .val_fraction = 0, .seq_len = 32});
    data::Loader loader(split.train,
                        {.microbatch = config.batch.microbatch,
                         .assignment = {.rank = world.rank(), .num_ranks = 4, .grad_accum = 2},
                         .seed = config.train.seed});
    const std::vector<data::Batch> mine = loader.next();
    job.engine().forward_backward(mine);
    std::vector<at::Tensor> weights;
    const param::ParameterSpecs& specs = job.plan().model->parameters;
    for (const param::ParameterId id : specs.ids()) {
      weights.push_back(job.engine().parameters().view(id));
    }
    std::vector<std::vector<at::Tensor>> gradients;
    for (const data::Batch& batch : mine) {
      gradients.push_back(
          naive_gradients(*job.plan().model, weights, batch, config.train.seed).gradients);
    }
    const auto sums = naive_reduce(job.groups().along(mesh::Axis::dp), gradients);
    for (const param::ParameterId id : specs.ids()) {
      const at::Tensor& sum = sums[static_cast<std::size_t>(id.value())];
      const at::Tensor mean = sum / static_cast<double>(8 * 32);  // tokens of the global batch
      const at::Tensor found = job.engine().gradients().view(id);
      expect(largest_error(found, mean) < tolerance,
             "the sum of " + job.plan().model->parameters[id].name);
    }
  });
}

}  // namespace
}  // namespace dtrain::testing::naive_test
