// The fused head beside LibTorch's own cross-entropy, which autograd differentiates.
#include "dtrain/model/bdh/fused_head.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "bdh_fixture.h"
#include "dtrain/model/bdh/fused_work.h"

namespace dtrain::model {
namespace {

constexpr std::int64_t kWidth = 16;

// Of the losses, x and the weight.
struct Result {
  at::Tensor losses;
  at::Tensor d_x;
  at::Tensor d_weight;
};

class Bench {
 public:
  Bench(std::int64_t batch, std::int64_t length, std::int64_t vocab, at::ScalarType dtype)
      : model_(
            bdh::make_bdh({.levels = 1, .width = kWidth, .heads = 2, .neurons = 4, .vocab = vocab},
                          length, {}, {.kernels = config::Kernels::fused})) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(3);
    const auto draw = [&](at::IntArrayRef sizes) { return at::randn(sizes, generator).to(dtype); };
    x_ = draw({batch, length, kWidth});
    weight_ = draw({kWidth, vocab});
    d_losses_ = draw({batch, length}).to(dtype == at::kDouble ? at::kDouble : at::kFloat);
    targets_ = at::randint(vocab, {batch, length}, generator, at::kLong);
  }

  // In float64, from the same numbers.
  [[nodiscard]] Result expected() const {
    const at::Tensor x = x_.to(at::kDouble).set_requires_grad(true);
    const at::Tensor weight = weight_.to(at::kDouble).set_requires_grad(true);
    const at::Tensor losses = at::cross_entropy_loss(at::matmul(x, weight).flatten(0, 1),
                                                     targets_.flatten(), {}, at::Reduction::None)
                                  .view_as(targets_);
    torch::autograd::backward({losses}, {d_losses_.to(at::kDouble)});
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
                               [&](param::ParameterId) -> param::GradientPlace {
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

void check_near(const Result& found, const Result& expected, double tolerance) {
  CHECK(testing::relative_error(found.losses, expected.losses) <= tolerance);
  CHECK(testing::relative_error(found.d_x, expected.d_x) <= tolerance);
  CHECK(testing::relative_error(found.d_weight, expected.d_weight) <= tolerance);
}

// Of as many as 40,001 float64 logits 192 rows exist at once, of float32 ones 416.
struct Case {
  std::int64_t batch;
  std::int64_t length;
  std::int64_t vocab;
};
const Case kCases[] = {{2, 9, 8}, {1, 1, 2}, {3, 50, 257}, {1, 225, 40000}, {2, 225, 40001}};

TEST_CASE("FusedHead.EqualsLibTorchsCrossEntropy") {
  for (const Case& test : kCases) {
    INFO(fmt::format("B {} T {} V {}", test.batch, test.length, test.vocab));
    const auto bench = [&](at::ScalarType dtype) {
      return Bench(test.batch, test.length, test.vocab, dtype);
    };
    check_near(bench(at::kDouble).run(), bench(at::kDouble).expected(), 1e-12);
    check_near(bench(at::kFloat).run(), bench(at::kFloat).expected(), 1e-5);
    check_near(bench(at::kBFloat16).run(), bench(at::kBFloat16).expected(), 2e-2);
  }
}

TEST_CASE("FusedHead.HasTheSameBitsOnAnyNumberOfThreads") {
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
    CHECK(static_cast<double>(of({W{0}, static_cast<W>(x)})) == Approx(expected).margin(1e-7));
  }
}

TEST_CASE("FusedHead.SumsOfExponentialsKeepExtremesAndWhatIsNoNumber") {
  check_range<float>();
  check_range<double>();
}

}  // namespace
}  // namespace dtrain::model
