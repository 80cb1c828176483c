// Compares the fused level with the plain one, differentiated by autograd.
#include "dtrain/model/bdh/internal/fused/fused_level.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <thread>

#include "bdh_fixture.h"
#include "dtrain/model/bdh/internal/bdh_blocks.h"
#include "dtrain/model/bdh/internal/fused/fused_work.h"
#include "support/oracles/rounding.h"

namespace dtrain::model::fused_level_test {
namespace {

struct Case {
  std::int64_t batch = 2;
  std::int64_t length = 40;
  std::int64_t width = 24;
  std::int64_t heads = 3;
  std::int64_t neurons = 64;
  double dropout = 0.25;
  std::int64_t chunk = 0;  // chunk size of attention; 0: full
};

// A level's output and gradients in float64; the gradient of x comes first.
struct Result {
  at::Tensor output;
  std::vector<at::Tensor> gradients;
};

class Bench {
 public:
  Bench(const Case& test, at::ScalarType dtype)
      : case_(test),
        sizes_{.layers = 1,
               .width = test.width,
               .heads = test.heads,
               .neurons = test.neurons,
               .vocab = 8,
               .dropout = test.dropout},
        plain_(sizes_, dtype, test.length) {
    plain_.randomise(5);
    plain_.weights.flat().mul_(0.3);
    const config::AttentionSetting attention{test.chunk == 0
                                                 ? config::AttentionSetting::Kind::full
                                                 : config::AttentionSetting::Kind::chunked,
                                             test.chunk};
    fused_ = bdh::make_bdh(sizes_, test.length, {},
                           {.kernels = config::Kernels::fused, .attention = attention});
    auto generator = at::make_generator<at::CPUGeneratorImpl>(9);
    const auto draw = [&] {
      return at::randn({test.batch, test.length, test.width}, generator).to(dtype);
    };
    x_ = bdh::layer_norm(draw()).to(dtype);
    d_out_ = draw();
  }

  // The same in float64, with each value perturbed by the fraction `relative`.
  [[nodiscard]] Bench in_float64(double relative = 0, std::uint64_t draw = 0) const {
    const auto off = [&](const at::Tensor& values) {
      return testing::disturbed(values.to(at::kDouble), relative, draw);
    };
    Bench wide(case_, at::kDouble);
    wide.plain_.weights.flat().copy_(off(plain_.weights.flat()));
    wide.x_ = off(x_);
    wide.d_out_ = off(d_out_);
    return wide;
  }

  [[nodiscard]] Result run_plain() {
    param::ParameterViews leaves;
    for (const param::ParameterId id : plain_.model->parameters.ids()) {
      leaves.push_back(plain_.weights.view(id).detach().set_requires_grad(true));
    }
    const ParameterReader read = [&](param::ParameterId id) { return leaves[id]; };
    const at::Tensor x = x_.detach().clone().set_requires_grad(true);
    const at::Tensor y = plain_.model->blocks[BlockId(1)]->forward(x, context(read));
    torch::autograd::backward({y}, {d_out_});
    Result result{.output = y.detach(), .gradients = {x.grad()}};
    for (const param::ParameterId id : weights()) result.gradients.push_back(leaves[id].grad());
    return result;
  }

  // start: initial value of the weight gradients; undefined: they have no value yet.
  [[nodiscard]] Result run_fused(const at::Tensor& start = {}) {
    const at::NoGradGuard no_grad;
    const ParameterReader read = [&](param::ParameterId id) { return plain_.weights.view(id); };
    Block& block = *fused_->blocks[BlockId(1)];
    NativeBackward& native = *block.native_backward();
    std::vector<at::Tensor> saved;
    Result result{.output = native.forward(x_, context(read), saved), .gradients = {}};
    CHECK(at::equal(block.forward(x_, context(read)), result.output));
    std::map<param::ParameterId, at::Tensor> sums;
    const auto place = [&](param::ParameterId id) -> param::GradientTarget {
      const auto wide = widened(plain_.weights.view(id)).options();
      at::Tensor sum = at::full(plain_.weights.view(id).sizes(), 1e6, wide);
      if (start.defined()) sum.copy_(start.expand_as(sum));
      sums[id] = sum;
      return {.view = sum, .is_first = !start.defined()};
    };
    result.gradients = {native.backward(x_, d_out_, saved, context(read), place)};
    for (const param::ParameterId id : weights()) result.gradients.push_back(sums.at(id));
    return result;
  }

 private:
  [[nodiscard]] std::vector<param::ParameterId> weights() const {
    const auto ids = fused_->blocks[BlockId(1)]->parameters();
    return {ids.begin(), ids.end()};
  }
  [[nodiscard]] BlockContext context(const ParameterReader& read) {
    return {.first_sample = first_sample_,
            .training = true,
            .seed = 11,
            .targets = {},
            .buffer_dtype = x_.scalar_type() == at::kDouble ? at::kDouble : at::kFloat,
            .use = read,
            .tensor_axis = axis_,
            .tap = tap_};
  }

  Case case_;
  bdh::BdhSizes sizes_;
  testing::BdhFixture plain_;
  std::unique_ptr<Model> fused_;
  at::Tensor x_;
  at::Tensor d_out_;
  at::Tensor first_sample_ = at::scalar_tensor(41, at::kLong);
  TensorAxis axis_;
  Tap tap_;
};

std::map<std::string, double> errors(const Result& found, const Result& expected) {
  std::map<std::string, double> all{
      {"output", testing::length_error(found.output, expected.output)}};
  for (std::size_t i = 0; i < expected.gradients.size(); ++i) {
    const auto is_zero = [i](const Result& result) {
      return result.gradients[i].count_nonzero().item<std::int64_t>() == 0;
    };
    // A single position attends to nothing, so the weights' gradients are zero.
    const bool are_zero = is_zero(found) && is_zero(expected);
    all[fmt::format("gradient {}", i)] =
        are_zero ? 0 : testing::length_error(found.gradients[i], expected.gradients[i]);
  }
  return all;
}

// The number of sequential roundings in `dtype`: ten results forward, ten gradients backward.
// Products of 16-bit values accumulate in float32; other dtypes round each term.
double roundings_of(const Case& test, at::ScalarType dtype) {
  const std::int64_t terms = std::max(test.heads * test.neurons, test.batch * test.length);
  return at::isReducedFloatingType(dtype) ? 20 : 20 * static_cast<double>(terms);
}

// Compares the fused level in `dtype` with the plain one in float64.
void check_near(const Case& test, at::ScalarType dtype) {
  Bench bench(test, dtype);
  const testing::Disturbance disturbance(dtype, roundings_of(test, dtype));
  const Result expected = bench.in_float64().run_plain();
  const auto bounds = testing::bounds_of(disturbance, [&](double relative, std::uint64_t draw) {
    return errors(bench.in_float64(relative, draw).run_plain(), expected);
  });
  for (const auto& [name, error] : errors(bench.run_fused(), expected)) {
    INFO(at::toString(dtype) << ", " << name);
    CHECK(error <= bounds.at(name));
    CHECK(bounds.at(name) < 0.5);
  }
}

const Case kCases[] = {
    {},
    {.batch = 1, .length = 1, .width = 8, .heads = 1, .neurons = 2},
    {.batch = 3, .length = 7, .width = 5, .heads = 2, .neurons = 6, .dropout = 0},
    {.length = 96, .width = 32, .neurons = 130},
    {.batch = 1, .length = 33, .width = 16, .heads = 2, .neurons = 2050},  // three groups
    {.length = 40, .chunk = 1},
    {.length = 40, .chunk = 16},
    {.length = 100, .width = 33, .chunk = 32},
    {.batch = 1, .length = 70, .heads = 2, .neurons = 1500, .chunk = 24},
};

TEST_CASE("FusedLevel.EqualsThePlainLevelInFloat64") {
  for (const Case& test : kCases) {
    INFO(fmt::format("B {} T {} D {} nh {} N {} chunk {}", test.batch, test.length, test.width,
                     test.heads, test.neurons, test.chunk));
    check_near(test, at::kDouble);
  }
}

TEST_CASE("FusedLevel.ApproximatesThePlainLevelInFloat32AndBfloat16") {
  for (const Case& test : {kCases[0], kCases[3], kCases[7]}) {
    check_near(test, at::kFloat);
    check_near(test, at::kBFloat16);
  }
}

TEST_CASE("FusedLevel.AccumulatesIntoExistingGradients") {
  Bench bench(kCases[0], at::kDouble);
  const Result first = bench.run_fused();
  const Result added = bench.run_fused(at::scalar_tensor(2.5, at::kDouble));
  CHECK(at::equal(added.gradients[0], first.gradients[0]));
  for (std::size_t i = 1; i < first.gradients.size(); ++i) {
    // Sums over all positions that start from 2.5.
    CHECK(testing::length_error(added.gradients[i], first.gradients[i] + 2.5) <=
          testing::rounding_bound(at::kDouble, static_cast<double>(2 * 40 + 1)));
  }
}

TEST_CASE("FusedLevel.BitsDoNotDependOnThreads") {
  const int before = at::get_num_threads();
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    for (const Case& test : {kCases[2], kCases[3], kCases[4], kCases[8]}) {
      Bench bench(test, dtype);
      at::set_num_threads(1);
      const Result expected = bench.run_fused();
      for (const int threads : {2, 3, 4}) {
        at::set_num_threads(threads);
        const Result found = bench.run_fused();
        CHECK(at::equal(found.output, expected.output));
        for (std::size_t i = 0; i < expected.gradients.size(); ++i) {
          CHECK(at::equal(found.gradients[i], expected.gradients[i]));
        }
      }
    }
  }
  at::set_num_threads(before);
}

TEST_CASE("SampleOrder.OrdersSamplesAndStopsWaitingAfterAFailure") {
  bdh::SampleOrder order(2);
  std::vector<int> sum;
  const auto add = [&](int sample) {
    order.wait(1, sample);
    sum.push_back(sample);
    order.pass_on(1, sample);
  };
  std::thread last([&] { add(2); });
  std::thread middle([&] { add(1); });
  add(0);
  last.join();
  middle.join();
  CHECK(sum == std::vector<int>{0, 1, 2});
  order.fail();
  order.wait(0, 1);
}

}  // namespace
}  // namespace dtrain::model::fused_level_test
