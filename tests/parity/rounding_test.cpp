// Errors of each dtype relative to float64.
#include <ATen/ATen.h>
#include <ATen/Version.h>
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "support/engine_run.h"
#include "support/oracles/sensitivity.h"
#include "support/ranks/local_ranks.h"
#include "support/settings.h"

namespace dtrain::testing::rounding_test {
namespace {

constexpr std::int64_t kUpdates = 50;
constexpr std::uint64_t kSeeds = 8;  // of weights and samples

struct Outcome {
  double first_loss = 0;
  std::map<std::string, at::Tensor> gradients;  // first step, by parameter
  double last_loss = 0;
};

config::Config config_of(const std::string& dtype, std::uint64_t seed) {
  config::Config config = tiny_config();
  set(config, "machine.dtype", dtype);
  config.train.seed = seed;
  config.train.steps = kUpdates;
  // At ten times the rate 50 updates are chaotic: float32 ends as far from float64 as float16 does.
  config.train.lr = 1e-3;
  return config;
}

double last_loss(const config::Config& config) {
  double loss = 0;
  on_threads(1, [&](comm::World& world) {
    EngineRun run(config, world);
    run.lower_loss_scale();
    run.steps(kUpdates);
    loss = run.trace().losses.back();
  });
  return loss;
}

Outcome outcome_of(const config::Config& config) {
  Outcome outcome;
  on_threads(1, [&](comm::World& world) {
    EngineRun first(config, world);
    first.lower_loss_scale();
    first.forward_backward_only();
    outcome.first_loss = first.trace().losses.front();
    const param::ParameterSpecs& specs = first.job().plan().model->parameters;
    first.job().engine().whole_model().visit_gradients(
        [&](param::ParameterId id, const at::Tensor& gradient) {
          outcome.gradients[specs[id].name] = gradient.to(at::kDouble).clone();
        });
  });
  outcome.last_loss = last_loss(config);
  return outcome;
}

TEST_CASE("After 50 updates the loss is float64's to each format's precision") {
  const auto [dtype, type] =
      GENERATE(std::pair{"float32", at::kFloat}, std::pair{"bfloat16", at::kBFloat16},
               std::pair{"float16", at::kHalf});
  const double exact = last_loss(config_of("float64", 11));
  const double difference = std::abs(last_loss(config_of(dtype, 11)) - exact);
  const double bound = rounding_bound_of(config_of(dtype, 11), type).losses.back();
  INFO(dtype << ": " << difference << " from " << exact << ", bound " << bound);
  CHECK(difference <= bound);
  CHECK(bound < 0.1);  // 50 updates lower the loss by about 1
}

// The largest of all parameters, by length; the scale of the loss is a factor of all.
double gradient_error(const Outcome& found, const Outcome& exact) {
  double largest = 0;
  for (const auto& [name, value] : exact.gradients) {
    const at::Tensor& gradient = found.gradients.at(name);
    const at::Tensor error = gradient / gradient.norm() - value / value.norm();
    largest = std::max(largest, error.norm().item<double>());
  }
  return largest;
}

// Root mean square over seeds.
struct Errors {
  void add(const Outcome& found, const Outcome& exact) {
    first_loss += std::pow(found.first_loss - exact.first_loss, 2) / kSeeds;
    gradients += std::pow(gradient_error(found, exact), 2) / kSeeds;
    last_loss += std::pow(found.last_loss - exact.last_loss, 2) / kSeeds;
  }

  double first_loss = 0;
  double gradients = 0;
  double last_loss = 0;
};

// The table of docs/guide/determinism.md: scripts/soak.sh lowered prints it for each instruction set.
TEST_CASE("Errors of each dtype", "[.rounding]") {
  const bool is_fused = tiny_config().machine.kernels != config::Kernels::plain;
  fmt::print(
      "{}, {} kernels: errors of the first loss, of its gradients, of the loss after {} "
      "updates, and its bound\n",
      at::get_cpu_capability(), is_fused ? "fused" : "plain", kUpdates);
  for (const auto& [dtype, type] :
       {std::pair{"float32", at::kFloat}, std::pair{"float16", at::kHalf},
        std::pair{"bfloat16", at::kBFloat16}}) {
    Errors errors;
    for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
      errors.add(outcome_of(config_of(dtype, seed)), outcome_of(config_of("float64", seed)));
    }
    const TraceBound bound = rounding_bound_of(config_of(dtype, 1), type);
    fmt::print("{:9} {:.1e}  {:.1e}  {:.1e}  {:.1e}\n", dtype, std::sqrt(errors.first_loss),
               std::sqrt(errors.gradients), std::sqrt(errors.last_loss), bound.losses.back());
    CHECK(std::sqrt(errors.last_loss) < bound.losses.back());
  }
}

}  // namespace
}  // namespace dtrain::testing::rounding_test
