// The blocks in bfloat16 and float16, beside themselves in float32 with the same weights.
#include <ATen/record_function.h>
#include <torch/csrc/autograd/autograd.h>

#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "dtrain/model/bdh/bdh_blocks.h"
#include "dtrain/param/parameter_use.h"
#include "unit/torch/model/bdh_fixture.h"

namespace dtrain::model::bdh {
namespace {

using testing::BdhFixture;
using testing::relative_error;

constexpr BdhSizes kSizes{.levels = 2, .width = 24, .heads = 2, .neurons = 66, .vocab = 13};

/// A rounding of this dtype is at most this share of a value.
double unit_of(at::ScalarType dtype) { return dtype == at::kHalf ? 0x1p-11 : 0x1p-8; }

/// Length of the difference over the expected length: single gradients may jump where a rounding
/// turns a ReLU on or off.
double length_error(const at::Tensor& found, const at::Tensor& expected) {
  return ((found - expected).norm() / expected.norm()).item<double>();
}

/// Weights in `dtype`, each rounded to `precision` first.
BdhFixture fixture_of(const BdhSizes& sizes, at::ScalarType dtype, at::ScalarType precision) {
  BdhFixture fixture(sizes, dtype);
  auto generator = at::make_generator<at::CPUGeneratorImpl>(std::uint64_t{31});
  const at::Tensor values = at::randn({fixture.weights.flat().numel()}, generator) * 0.25;
  fixture.weights.flat().copy_(values.to(precision));
  return fixture;
}

/// Adds as the gradient arena does.
class FloatSink : public param::GradientSink {
 public:
  void add_gradient(param::ParameterId id, const at::Tensor& grad) override {
    dtypes.insert(grad.scalar_type());
    at::Tensor& sum = sums[id];
    if (!sum.defined()) sum = at::zeros(grad.sizes());
    sum.add_(grad);
  }

  std::map<param::ParameterId, at::Tensor> sums;
  std::set<at::ScalarType> dtypes;
};

struct Result {
  std::map<std::string, at::Tensor> taps;
  at::Tensor losses;
  FloatSink gradients;
};

/// Forward and backward of the sum of losses over 3 sequences of 19 tokens.
Result train_once(const BdhFixture& fixture, at::ScalarType buffer_dtype = at::kFloat) {
  Result result;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(std::uint64_t{32});
  const at::Tensor ids = at::randint(fixture.sizes.vocab, {3, 19}, generator, at::kLong);
  const ParameterReader read = [&](param::ParameterId id) {
    return param::use_parameter(fixture.weights.view(id).detach().requires_grad_(), id,
                                result.gradients);
  };
  const Tap tap = [&](std::string_view name, const at::Tensor& value) {
    result.taps[std::string(name)] = value.detach();
  };
  TensorAxis axis;
  const BlockContext context{.first_sample = at::zeros({}, at::kLong),
                             .training = true,
                             .seed = 5,
                             .targets = ids.roll(-1, 1),
                             .buffer_dtype = buffer_dtype,
                             .use = read,
                             .tensor_axis = axis,
                             .tap = tap};
  at::Tensor x = ids;
  for (const auto& block : fixture.model->blocks) x = block->forward(x, context);
  torch::autograd::backward({x.sum()}, {});
  result.losses = x.detach();
  return result;
}

/// The dtypes of both operands of every matrix product of this thread.
class ProductObserver {
 public:
  ProductObserver()
      : handle_(
            at::addThreadLocalCallback(at::RecordFunctionCallback(&note).needsInputs(true).scopes(
                {at::RecordScope::FUNCTION}))) {
    seen().clear();
  }
  ~ProductObserver() { at::removeCallback(handle_); }
  ProductObserver(const ProductObserver&) = delete;
  ProductObserver& operator=(const ProductObserver&) = delete;

  static std::multiset<at::ScalarType>& seen() {
    static thread_local std::multiset<at::ScalarType> dtypes;
    return dtypes;
  }

 private:
  static std::unique_ptr<at::ObserverContext> note(const at::RecordFunction& function) {
    const std::string_view name = function.name();
    if (name == "aten::mm" || name == "aten::bmm") {
      for (const c10::IValue& input : function.inputs()) {
        if (input.isTensor()) seen().insert(input.toTensor().scalar_type());
      }
    }
    return nullptr;
  }

  at::CallbackHandle handle_;
};

TEST_CASE("Every product multiplies the low dtype, but for float16's scores times values") {
  const at::ScalarType dtype = GENERATE(at::kBFloat16, at::kHalf);
  const BdhFixture fixture = fixture_of(kSizes, dtype, dtype);
  const ProductObserver observer;
  CHECK(train_once(fixture).gradients.dtypes == std::set<at::ScalarType>{dtype});
  const auto& seen = ProductObserver::seen();
  // A level has 5 products forward and 9 backward (that of q with itself has one), the head 1 and
  // 2; each has two operands.
  const std::size_t all = 2 * (2 * (5 + 9) + 3);
  const std::size_t wide = dtype == at::kHalf ? 2 * 2 * 3 : 0;
  CHECK(seen.count(at::kFloat) == wide);
  CHECK(seen.count(dtype) == all - wide);
}

TEST_CASE("In a low dtype logits, losses and gradients are near float32's, and not equal") {
  const at::ScalarType dtype = GENERATE(at::kBFloat16, at::kHalf);
  BdhSizes sizes = kSizes;
  sizes.dropout = 0.2;
  const Result expected = train_once(fixture_of(sizes, at::kFloat, dtype));
  const Result found = train_once(fixture_of(sizes, dtype, dtype));
  const double unit = unit_of(dtype);
  CHECK(found.losses.scalar_type() == at::kFloat);
  CHECK(found.taps.at("logits").scalar_type() == at::kFloat);
  CHECK(found.taps.at("act.layer1.out").scalar_type() == dtype);
  for (const auto& [name, value] : expected.taps) {
    CAPTURE(name);
    CHECK(relative_error(found.taps.at(name), value) < 12 * unit);
  }
  CHECK(relative_error(found.losses, expected.losses) < 12 * unit);
  CHECK(relative_error(found.losses, expected.losses) > unit / 100);
  REQUIRE(found.gradients.sums.size() == 5);
  for (const auto& [id, gradient] : expected.gradients.sums) {
    CAPTURE(id);
    const at::Tensor& low = found.gradients.sums.at(id);
    // A share of the ReLUs as large as the rounding flips, and the error is that share's root.
    CHECK(length_error(low, gradient) < 80 * unit);
    // Flips are random; a factor would not be.
    CHECK((low * gradient).sum().item<double>() / gradient.square().sum().item<double>() ==
          Approx(1).epsilon(16 * unit));
  }
}

TEST_CASE("Scores beyond float16's range leave its results finite and near float32's") {
  BdhFixture low = fixture_of(kSizes, at::kHalf, at::kHalf);
  BdhFixture wide = fixture_of(kSizes, at::kFloat, at::kHalf);
  for (BdhFixture* fixture : {&low, &wide}) fixture->exported("encoder").mul_(64);
  // About N / 4 * (64 * 0.25)^2 * D: some 100,000 for a position with itself.
  const Result expected = train_once(wide);
  const Result found = train_once(low);
  CHECK(relative_error(found.losses, expected.losses) < 0.02);
  for (const auto& [id, gradient] : expected.gradients.sums) {
    CAPTURE(id);
    CHECK(length_error(found.gradients.sums.at(id), gradient) < 0.05);
  }
}

TEST_CASE("A token's gradient does not stall where the token is frequent") {
  const at::ScalarType dtype = GENERATE(at::kBFloat16, at::kHalf);
  const BdhSizes sizes{.levels = 1, .width = 4, .heads = 1, .neurons = 4, .vocab = 3};
  const auto gradient = [&](at::ScalarType computed) {
    const BdhFixture fixture = fixture_of(sizes, computed, dtype);
    FloatSink sink;
    const ParameterReader read = [&](param::ParameterId id) {
      return param::use_parameter(fixture.weights.view(id).detach().requires_grad_(), id, sink);
    };
    const Tap no_tap;
    TensorAxis axis;
    const BlockContext context{
        .targets = at::Tensor(), .use = read, .tensor_axis = axis, .tap = no_tap};
    const at::Tensor ids = at::zeros({1, 8000}, at::kLong);
    const at::Tensor x = fixture.model->blocks.front()->forward(ids, context);
    const at::Tensor ramp = at::arange(4).div(100).to(computed).expand_as(x);
    torch::autograd::backward({x}, {ramp});
    return sink.sums.at(param::ParameterId(0));
  };
  CHECK(relative_error(gradient(dtype), gradient(at::kFloat)) < 4 * unit_of(dtype));
}

TEST_CASE("Tables in bfloat16 change results a little, and by no more than positions lose") {
  const BdhFixture fixture = fixture_of(kSizes, at::kFloat, at::kFloat);
  const Result expected = train_once(fixture);
  const double error = relative_error(train_once(fixture, at::kBFloat16).losses, expected.losses);
  CHECK(error > 1e-6);
  CHECK(error < 0.02);
}

TEST_CASE("LayerNorm's gradient has float32 statistics in a low dtype") {
  const at::ScalarType dtype = GENERATE(at::kBFloat16, at::kHalf);
  auto generator = at::make_generator<at::CPUGeneratorImpl>(std::uint64_t{33});
  const at::Tensor values = at::randn({64, 32}, generator).to(dtype);
  const at::Tensor upstream = at::randn({64, 32}, generator).to(dtype);
  const auto gradient = [&](at::ScalarType computed) {
    const at::Tensor x = values.to(computed).detach().requires_grad_();
    return torch::autograd::grad({layer_norm(x)}, {x}, {upstream.to(computed)})[0];
  };
  // One rounding of the result alone: rounded statistics would show in the last digit.
  CHECK(at::allclose(gradient(dtype).to(at::kFloat), gradient(at::kFloat).to(dtype).to(at::kFloat),
                     unit_of(dtype) / 4, 1e-6));
}

}  // namespace
}  // namespace dtrain::model::bdh
