#include "dtrain/optim/global_norm.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "support/specs.h"
#include "support/values.h"

namespace dtrain::optim {
namespace {

using testing::spec;

struct Gradients {
  explicit Gradients(std::vector<param::ParameterSpec> given, at::ScalarType dtype = at::kFloat)
      : specs(std::move(given)), layout(specs), arena(layout, dtype, param::private_memory) {
    for (std::size_t id = 0; id < specs.size(); ++id) {
      const at::Tensor view = arena.view(static_cast<param::ParameterId>(id));
      // By name: the same values wherever the parameter lies.
      view.copy_(testing::values_of(specs[id].name.front(), view.numel(), dtype));
    }
  }
  [[nodiscard]] double norm() const { return global_norm(arena, layout, specs); }

  std::vector<param::ParameterSpec> specs;
  param::ArenaLayout layout;
  param::Arena arena;
};

TEST_CASE("The global norm is the root of the sum of all squares") {
  const Gradients gradients({spec("a", 10'000), spec("b", 3), spec("c", 4'096), spec("d", 64)});
  long double squares = 0;
  for (param::ParameterId id = 0; id < 4; ++id) {
    const at::Tensor view = gradients.arena.view(id);
    for (std::int64_t i = 0; i < view.numel(); ++i) {
      const auto value = static_cast<long double>(view.const_data_ptr<float>()[i]);
      squares += value * value;
    }
  }
  const auto expected = static_cast<double>(std::sqrt(squares));
  CHECK(std::abs(gradients.norm() - expected) <= 4e-16 * expected * 10);
}

TEST_CASE("The norm has the same bits in any order of parameters, with any number of threads") {
  const std::vector<param::ParameterSpec> specs{spec("a", 9'000), spec("b", 65), spec("c", 20'001)};
  const double norm = Gradients(specs).norm();
  CHECK(Gradients({specs[2], specs[0], specs[1]}).norm() == norm);
  CHECK(Gradients({specs[1], specs[2], specs[0]}).norm() == norm);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  CHECK(Gradients(specs).norm() == norm);
  at::set_num_threads(threads);
}

TEST_CASE("Shards that cut blocks of the sum give the norm the bits of the whole") {
  const std::vector<param::ParameterSpec> specs{spec("a", 9'000), spec("b", 65), spec("c", 20'001),
                                                spec("d", 4'096)};
  const Gradients whole(specs);
  for (const std::int64_t count : {2, 3, 8}) {
    for (const std::vector<param::ParameterId>& begins :
         {std::vector<param::ParameterId>{0}, {0, 2}, {0, 1, 2, 3}}) {
      const param::ArenaLayout layout(specs, {.unit_begins = begins, .num_shards = count});
      at::Tensor sums;
      for (std::int64_t shard = 0; shard < count; ++shard) {
        const GlobalNorm norm(layout, specs, shard);
        const auto part = param::Arena::of_shard(layout, shard, at::kFloat, param::private_memory);
        for (std::size_t id = 0; id < specs.size(); ++id) {
          const auto parameter = static_cast<param::ParameterId>(id);
          const param::ElementRange all = layout.range(parameter);
          const param::ElementRange own =
              common(all, layout.shard_range(layout.unit_of(parameter), shard));
          if (own.is_empty()) continue;
          part.slice(own).copy_(
              whole.arena.view(parameter).narrow(0, own.begin - all.begin, own.size()));
        }
        const at::Tensor mine = norm.sums_of(part);
        sums = shard == 0 ? mine : mine + sums;
      }
      INFO(count << " shards, " << begins.size() << " units");
      const at::Tensor squares = GlobalNorm(layout, specs, 0).squares(sums);
      CHECK(norm_of_squares(squares, specs).item<double>() == whole.norm());
    }
  }
}

TEST_CASE("What does not fit in float32 when squared is still a norm") {
  Gradients gradients({spec("a", 4)});
  gradients.arena.view(0).fill_(1e30f);
  CHECK(gradients.norm() == Approx(2e30));
}

TEST_CASE("A gradient that is not finite shows in the norm") {
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Gradients gradients({spec("a", 5'000), spec("b", 7)});
    gradients.arena.view(0)[4'999].fill_(value);
    CHECK_FALSE(std::isfinite(gradients.norm()));
  }
}

TEST_CASE("Clipping scales to the norm that is allowed, and never up") {
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
}  // namespace dtrain::optim
