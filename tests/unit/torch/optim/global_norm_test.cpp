#include "dtrain/optim/global_norm.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "support/ids.h"
#include "support/oracles/rounding.h"
#include "support/values.h"

namespace dtrain::optim::global_norm_test {
namespace {

using testing::spec;
using testing::operator""_p;
using testing::operator""_s;

// The norm of unsharded values.
double global_norm(const param::Arena& values, const param::ArenaLayout& layout,
                   const param::ParameterSpecs& specs) {
  const GlobalNorm norm(layout, specs, 0_s);
  return norm.norm(norm.squares(norm.sums_of(values))).item<double>();
}

struct Gradients {
  explicit Gradients(param::ParameterSpecs given, at::ScalarType dtype = at::kFloat)
      : specs(std::move(given)), layout(specs), arena(layout, dtype, param::private_memory) {
    for (const param::ParameterId id : specs.ids()) {
      const at::Tensor view = arena.view(id);
      // Seeded by name: the same values for any parameter order.
      view.copy_(testing::values_of(specs[id].name.front(), view.numel(), dtype));
    }
  }
  [[nodiscard]] double norm() const { return global_norm(arena, layout, specs); }

  param::ParameterSpecs specs;
  param::ArenaLayout layout;
  param::Arena arena;
};

TEST_CASE("The global norm is the square root of the sum of all squares") {
  const Gradients gradients({spec("a", 10'000), spec("b", 3), spec("c", 4'096), spec("d", 64)});
  long double squares = 0;
  for (const param::ParameterId id : gradients.specs.ids()) {
    const at::Tensor view = gradients.arena.view(id);
    for (std::int64_t i = 0; i < view.numel(); ++i) {
      const auto value = static_cast<long double>(view.const_data_ptr<float>()[i]);
      squares += value * value;
    }
  }
  const auto expected = static_cast<double>(std::sqrt(squares));
  // All terms are positive; squares, sums and the root are rounded.
  const double bound = testing::rounding_bound(at::kDouble, 10'000 + 3 + 4'096 + 64 + 2);
  CHECK(std::abs(gradients.norm() - expected) <= bound * expected);
}

TEST_CASE("The norm has the same bits in any order of parameters, with any number of threads") {
  const param::ParameterSpecs specs{spec("a", 9'000), spec("b", 65), spec("c", 20'001)};
  const double norm = Gradients(specs).norm();
  CHECK(Gradients({specs[2_p], specs[0_p], specs[1_p]}).norm() == norm);
  CHECK(Gradients({specs[1_p], specs[2_p], specs[0_p]}).norm() == norm);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  CHECK(Gradients(specs).norm() == norm);
  at::set_num_threads(threads);
}

TEST_CASE("Elements that an arena does not hold count as zeros, bit for bit") {
  const param::ParameterSpecs specs{spec("a", 9'000), spec("b", 65), spec("c", 20'001)};
  const param::ArenaLayout layout(specs, {.frozen = {1_p}});
  const Gradients whole(specs);
  whole.arena.view(1_p).zero_();
  const auto trained = param::Arena::of_trained(layout, at::kFloat, param::private_memory);
  for (const param::ParameterId id : {0_p, 2_p}) trained.view(id).copy_(whole.arena.view(id));
  CHECK(global_norm(trained, layout, specs) == whole.norm());
}

TEST_CASE("Values whose squares overflow float32 have a finite norm") {
  Gradients gradients({spec("a", 4)});
  gradients.arena.view(0_p).fill_(1e30f);
  CHECK(gradients.norm() == Approx(2e30));
}

TEST_CASE("A gradient that is not finite makes the norm not finite") {
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Gradients gradients({spec("a", 5'000), spec("b", 7)});
    gradients.arena.view(0_p)[4'999].fill_(value);
    CHECK_FALSE(std::isfinite(gradients.norm()));
  }
}

TEST_CASE("The bits of norm_of do not depend on threads") {
  const std::int64_t size = GENERATE(1, 4'096, 50'001);
  const at::Tensor values = testing::values_of(3, size, at::kFloat);
  const double expected = values.to(at::kDouble).norm().item<double>();
  const double found = norm_of(values).item<double>();
  const double bound = testing::rounding_bound(at::kDouble, static_cast<double>(2 * (size + 2)));
  CHECK(found == Approx(expected).epsilon(bound));
  const int before = at::get_num_threads();
  at::set_num_threads(3);
  CHECK(norm_of(values).item<double>() == found);
  at::set_num_threads(before);
}

TEST_CASE("Clipping scales down to the maximum norm, and never up") {
  const auto factor = [](double norm, double max_norm) {
    return clip_factor(at::scalar_tensor(norm, at::kDouble), max_norm).item<double>();
  };
  CHECK(factor(4.0, 1.0) == 0.25);
  CHECK(factor(3.0, 0.7) == 0.7 / 3.0);  // one rounding
  CHECK(factor(0.5, 1.0) == 1.0);
  CHECK(factor(1.0, 1.0) == 1.0);
  CHECK(factor(9.0, 0.0) == 1.0);  // 0: off
  CHECK(factor(0.0, 1.0) == 1.0);
  CHECK(factor(std::numeric_limits<double>::infinity(), 1.0) == 1.0);
  CHECK(factor(std::numeric_limits<double>::quiet_NaN(), 1.0) == 1.0);
}

}  // namespace
}  // namespace dtrain::optim::global_norm_test
