#include "support/oracles/sensitivity.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "dtrain/base/checksum.h"
#include "support/oracles/rounding.h"
#include "support/ranks/local_ranks.h"
#include "support/settings.h"

namespace dtrain::testing {
namespace {

// The number of sequential roundings of a step in `dtype`. A level stores three weights and ten results
// forward, the embedding and the head two each; backward there is a gradient for each.
double roundings_of_step(const config::Config& config, at::ScalarType dtype) {
  const double results = 2.0 * (13.0 * static_cast<double>(config.model.layers) + 4);
  // Products of 16-bit values accumulate in float32 and are rounded once. Other dtypes round each
  // term; the longest sum is a weight's gradient, with one term per token.
  const auto terms = static_cast<double>(config.batch.global * config.data.seq_len);
  return at::isReducedFloatingType(dtype) ? results : results * terms;
}

bool is_weight(const std::string& name) { return name.starts_with(checkpoint::kWeightPrefix); }

// Ranks that hold the same piece perturb it alike.
void disturb_weights(EngineRun& run, double relative, std::uint64_t seed) {
  for (const checkpoint::Piece& piece : run.job().engine().whole_model().state()) {
    if (!is_weight(piece.name)) continue;
    const std::uint64_t own_seed = base::hash_text(piece.name) + seed;
    at::Tensor(piece.tensor).copy_(disturbed(piece.tensor, relative, own_seed));
  }
}

// relative: the perturbation of all weights before every step.
Trace disturbed_run(const config::Config& config, double relative, std::uint64_t draw) {
  Trace trace;
  on_threads(num_ranks(config), [&](comm::World& world) {
    EngineRun run(config, world);
    for (std::int64_t step = 0; step < config.train.steps; ++step) {
      disturb_weights(run, relative, draw * 1000 + static_cast<std::uint64_t>(step));
      run.steps(1);
    }
    const Trace own = run.trace();
    if (world.rank() == 0) trace = own;
  });
  return trace;
}

void raise(double& bound, double error) { bound = std::max(bound, error); }

// Raises the bounds to the errors of a perturbed run. A loss or norm that happens to be close keeps the
// bound of the step before.
void raise_bounds(TraceBound& bound, const Trace& found, const Trace& exact, double scale) {
  double loss = 0;
  double norm = 0;
  for (std::size_t step = 0; step < exact.losses.size(); ++step) {
    raise(loss, std::abs(found.losses[step] - exact.losses[step]) * scale);
    raise(norm, std::abs(found.norms[step] / exact.norms[step] - 1) * scale);
    raise(bound.losses[step], loss);
    raise(bound.norms[step], norm);
  }
  for (const auto& [name, value] : exact.state) {
    raise(bound.state[name], largest_error(found.state.at(name), value) * scale);
  }
}

// Rounding errors that do not come through the weights: of a loss in its sum over the
// vocabulary, a norm in its sums of 4,096 squares, a weight and a moment in an update. 16-bit dtypes compute all
// of these in float32 or wider.
void add_own_roundings(TraceBound& bound, const Trace& exact, at::ScalarType dtype) {
  constexpr double kVocabulary = 256;
  constexpr double kSquares = 4096;
  constexpr double kUpdate = 20;
  const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
  for (std::size_t step = 0; step < exact.losses.size(); ++step) {
    bound.losses[step] += independent_rounding_bound(wide, kVocabulary) * exact.losses[step];
    bound.norms[step] += independent_rounding_bound(at::kDouble, kSquares);
  }
  for (auto& [name, error] : bound.state) error += rounding_bound(wide, kUpdate);
}

Trace start_of(config::Config config) {
  config.train.steps = 0;
  return train_on_threads(config).front();
}

}  // namespace

double error_of_update(const at::Tensor& found, const at::Tensor& expected,
                       const at::Tensor& initial) {
  return ((found - expected).norm() / (expected - initial).norm()).item<double>();
}

at::ScalarType scalar_type_of(const std::string& dtype) {
  return dtype == "bfloat16" ? at::kBFloat16 : dtype == "float16" ? at::kHalf : at::kFloat;
}

TraceBound rounding_bound_of(const config::Config& given, at::ScalarType dtype) {
  config::Config config = given;
  set(config, "machine.dtype", "float64");
  const Disturbance disturbance(dtype, roundings_of_step(config, dtype));
  const Trace start = start_of(config);
  const Trace exact = train_on_threads(config).front();
  TraceBound bound{.losses = std::vector<double>(exact.losses.size()),
                   .norms = std::vector<double>(exact.losses.size()),
                   .state = {},
                   .updates = {}};
  for (std::uint64_t draw = 1; draw <= Disturbance::kDraws; ++draw) {
    const Trace found = disturbed_run(config, disturbance.relative, draw);
    raise_bounds(bound, found, exact, disturbance.scale);
    for (const auto& [name, value] : exact.state) {
      if (!is_weight(name)) continue;
      const double error = error_of_update(found.state.at(name), value, start.state.at(name));
      raise(bound.updates[name], error * disturbance.scale);
    }
  }
  add_own_roundings(bound, exact, dtype);
  return bound;
}

void check_near(const Trace& found, const Trace& expected, const TraceBound& bound) {
  REQUIRE(found.losses.size() == expected.losses.size());
  for (std::size_t step = 0; step < expected.losses.size(); ++step) {
    INFO("step " << step + 1);
    CHECK(std::abs(found.losses[step] - expected.losses[step]) <= 2 * bound.losses[step]);
    CHECK(std::abs(found.norms[step] / expected.norms[step] - 1) <= 2 * bound.norms[step]);
  }
  for (const auto& [name, value] : expected.state) {
    INFO(name);
    CHECK(largest_error(found.state.at(name), value) <= 2 * bound.state.at(name));
  }
}

void check_updates_near(const Trace& found, const Trace& expected, const Trace& initial,
                        const TraceBound& bound) {
  REQUIRE(found.losses.size() == expected.losses.size());
  for (std::size_t step = 0; step < expected.losses.size(); ++step) {
    INFO("step " << step + 1);
    CHECK(std::abs(found.losses[step] - expected.losses[step]) <= 2 * bound.losses[step]);
    const bool overflows = std::isinf(expected.norms[step]) || std::isnan(expected.norms[step]);
    if (overflows) continue;
    CHECK(std::abs(found.norms[step] / expected.norms[step] - 1) <= 2 * bound.norms[step]);
  }
  const std::string updates = "optimizer.num_updates";
  CHECK(at::equal(found.state.at(updates), expected.state.at(updates)));
  for (const auto& [name, values] : expected.state) {
    if (!name.starts_with("model.")) continue;
    const double error = error_of_update(found.state.at(name), values, initial.state.at(name));
    INFO(name << ": " << error);
    // Adam's first updates have equal magnitude, so rounding can flip those of small gradients.
    // Without any update the error would be 1.
    CHECK(error <= std::min(0.9, 2 * bound.updates.at(name)));
  }
}

}  // namespace dtrain::testing
