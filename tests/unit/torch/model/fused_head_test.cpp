// Compares the fused head with LibTorch's cross-entropy, differentiated by autograd.
#include "dtrain/model/bdh/internal/fused/fused_head.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <map>
#include <string>

#include "bdh_fixture.h"
#include "dtrain/model/bdh/internal/fused/fused_work.h"
#include "support/oracles/rounding.h"

namespace dtrain::model::fused_head_test {
namespace {

constexpr std::int64_t kWidth = 16;

// Losses, and gradients of x and the weight.
struct Result {
  at::Tensor losses;
  at::Tensor d_x;
  at::Tensor d_weight;
};

class Bench {
 public:
  Bench(std::int64_t batch, std::int64_t length, std::int64_t vocab, at::ScalarType dtype)
      : model_(
            bdh::make_bdh({.layers = 1, .width = kWidth, .heads = 2, .neurons = 4, .vocab = vocab},
                          length, {}, {.kernels = config::Kernels::fused})) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(3);
    const auto draw = [&](at::IntArrayRef sizes) { return at::randn(sizes, generator).to(dtype); };
    x_ = draw({batch, length, kWidth});
    weight_ = draw({kWidth, vocab});
    d_losses_ = draw({batch, length}).to(dtype == at::kDouble ? at::kDouble : at::kFloat);
    targets_ = at::randint(vocab, {batch, length}, generator, at::kLong);
  }

  // In float64, from the same values, each perturbed by the fraction `relative`.
  [[nodiscard]] Result expected(double relative = 0, std::uint64_t draw = 0) const {
    const auto off = [&](const at::Tensor& values) {
      return testing::disturbed(values.to(at::kDouble), relative, draw);
    };
    const at::Tensor x = off(x_).set_requires_grad(true);
    const at::Tensor weight = off(weight_).set_requires_grad(true);
    const at::Tensor losses = at::cross_entropy_loss(at::matmul(x, weight).flatten(0, 1),
                                                     targets_.flatten(), {}, at::Reduction::None)
                                  .view_as(targets_);
    torch::autograd::backward({losses}, {off(d_losses_)});
    return {losses.detach(), x.grad(), weight.grad()};
  }

  [[nodiscard]] Result run() const {
    const at::NoGradGuard no_grad;
    const ParameterReader read = [&](param::ParameterId) { return weight_; };
    TensorAxis axis;
    const Tap tap;
    const BlockContext context{
        .training = true, .targets = targets_, .use = read, .tensor_axis = axis, .tap = tap};
    NativeBackward& head = *model_->blocks[BlockId(2)]->native_backward();
    std::vector<at::Tensor> saved;
    Result result{.losses = head.forward(x_, context, saved), .d_x = {}, .d_weight = {}};
    result.d_weight = at::full(weight_.sizes(), 1e6, d_losses_.options());
    result.d_x = head.backward(x_, d_losses_, saved, context,
                               [&](param::ParameterId) -> param::GradientTarget {
                                 return {.view = result.d_weight, .is_first = true};
                               });
    return result;
  }

 private:
  std::unique_ptr<Model> model_;
  at::Tensor x_;         // (B, T, D)
  at::Tensor weight_;    // (D, V)
  at::Tensor targets_;   // (B, T)
  at::Tensor d_losses_;  // (B, T)
};

std::map<std::string, double> errors(const Result& found, const Result& expected) {
  return {{"losses", testing::largest_error(found.losses, expected.losses)},
          {"d_x", testing::largest_error(found.d_x, expected.d_x)},
          {"d_weight", testing::largest_error(found.d_weight, expected.d_weight)}};
}

// Logits, exponentials, losses, the logits' gradients and two gradients are rounded in
// sequence; float32 and float64 also round each term of a sum, the longest of which is over the
// vocabulary. LibTorch's float64 sums are equally long.
void check_near(const Bench& bench, at::ScalarType dtype, std::int64_t vocab) {
  const double terms = at::isReducedFloatingType(dtype) ? 1 : static_cast<double>(vocab);
  const testing::Disturbance disturbance(dtype, 6 * terms);
  const Result expected = bench.expected();
  const auto bounds = testing::bounds_of(disturbance, [&](double relative, std::uint64_t draw) {
    return errors(bench.expected(relative, draw), expected);
  });
  for (const auto& [name, error] : errors(bench.run(), expected)) {
    INFO(name);
    CHECK(error <= bounds.at(name));
  }
}

// With 40,001 logits per row, 192 rows are materialized at once in float64, and 416 in float32.
struct Case {
  std::int64_t batch;
  std::int64_t length;
  std::int64_t vocab;
};
const Case kCases[] = {{2, 9, 8}, {1, 1, 2}, {3, 50, 257}, {1, 225, 40000}, {2, 225, 40001}};

TEST_CASE("FusedHead.EqualsLibTorchsCrossEntropy") {
  for (const Case& test : kCases) {
    INFO(fmt::format("B {} T {} V {}", test.batch, test.length, test.vocab));
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      INFO(at::toString(dtype));
      check_near(Bench(test.batch, test.length, test.vocab, dtype), dtype, test.vocab);
    }
  }
}

TEST_CASE("FusedHead.BitsDoNotDependOnThreads") {
  const int before = at::get_num_threads();
  for (const Case& test : {kCases[2], kCases[4]}) {
    const Bench bench(test.batch, test.length, test.vocab, at::kFloat);
    at::set_num_threads(1);
    const Result expected = bench.run();
    for (const int threads : {2, 3}) {
      at::set_num_threads(threads);
      const Result found = bench.run();
      CHECK(at::equal(found.losses, expected.losses));
      CHECK(at::equal(found.d_x, expected.d_x));
      CHECK(at::equal(found.d_weight, expected.d_weight));
    }
  }
  at::set_num_threads(before);
}

template <typename W>
void check_range() {
  const auto& rows = bdh::level_rows<W>();
  const auto of = [&](std::vector<W> logits) {
    const auto found = rows.log_sum_exp(logits.data(), static_cast<long>(logits.size()));
    return found.top + found.log_sum;
  };
  constexpr W kInfinity = std::numeric_limits<W>::infinity();
  CHECK(of({W{3}}) == W{3});
  CHECK(of({W{1000}, W{-1000}}) == W{1000});
  CHECK(of({-kInfinity, W{2}}) == W{2});
  CHECK(std::isnan(of(std::vector<W>(40, std::numeric_limits<W>::quiet_NaN()))));
  std::vector<W> one_nan(40, W{1});
  one_nan[33] = std::numeric_limits<W>::quiet_NaN();
  CHECK(std::isnan(of(one_nan)));
  for (double x = -80; x <= 0; x += 0.37) {  // two logits of difference x
    const double expected = std::log1p(std::exp(static_cast<double>(static_cast<W>(x))));
    // A difference, an exponential, a sum and a logarithm, of values up to 1.
    const double bound = testing::rounding_bound(c10::CppTypeToScalarType<W>::value, 4);
    CHECK(static_cast<double>(of({W{0}, static_cast<W>(x)})) == Approx(expected).margin(bound));
  }
}

TEST_CASE("FusedHead.LogSumExpPropagatesInfinitiesAndNaN") {
  check_range<float>();
  check_range<double>();
}

}  // namespace
}  // namespace dtrain::model::fused_head_test
