// Compares the blocks in bfloat16 and float16 with float32 and float64, with the same weights.
#include <ATen/record_function.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <set>

#include "dtrain/model/bdh/internal/bdh_blocks.h"
#include "dtrain/param/parameter_use.h"
#include "support/oracles/rounding.h"
#include "unit/torch/model/bdh_fixture.h"

namespace dtrain::model::bdh::low_precision_test {
namespace {

using testing::BdhFixture;
using testing::largest_error;
using testing::length_error;

constexpr BdhSizes kSizes{.layers = 2, .width = 24, .heads = 2, .neurons = 66, .vocab = 13};

/// Weights in `dtype`, each rounded to `precision` first.
BdhFixture fixture_of(const BdhSizes& sizes, at::ScalarType dtype, at::ScalarType precision) {
  BdhFixture fixture(sizes, dtype);
  auto generator = at::make_generator<at::CPUGeneratorImpl>(std::uint64_t{31});
  const at::Tensor values = at::randn({fixture.weights.flat().numel()}, generator) * 0.25;
  fixture.weights.flat().copy_(values.to(precision));
  return fixture;
}

/// Accumulates like the gradient arena.
class FloatSink : public param::GradientSink {
 public:
  void add_gradient(param::ParameterId id, const at::Tensor& grad) override {
    dtypes.insert(grad.scalar_type());
    at::Tensor& sum = sums[id];
    if (!sum.defined()) sum = at::zeros(grad.sizes(), widened(grad).options());
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

/// Runs forward and backward of the summed loss over 3 sequences of 19 tokens.
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

/// Records the operand dtypes of every matrix product of this thread.
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

TEST_CASE("All products have 16-bit operands, except float16's scores times values") {
  const at::ScalarType dtype = GENERATE(at::kBFloat16, at::kHalf);
  const BdhFixture fixture = fixture_of(kSizes, dtype, dtype);
  const ProductObserver observer;
  CHECK(train_once(fixture).gradients.dtypes == std::set<at::ScalarType>{dtype});
  const auto& seen = ProductObserver::seen();
  // A level has 5 products forward and 9 backward (one for q times itself), the head 1 and
  // 2; each has two operands.
  const std::size_t all = 2 * (2 * (5 + 9) + 3);
  const std::size_t wide = dtype == at::kHalf ? 2 * 2 * 3 : 0;
  CHECK(seen.count(at::kFloat) == wide);
  CHECK(seen.count(dtype) == all - wide);
}

/// The error of a result, by compared value.
std::map<std::string, double> errors(const Result& found, const Result& exact) {
  std::map<std::string, double> all{{"losses", largest_error(found.losses, exact.losses)}};
  for (const auto& [name, value] : exact.taps) {
    all[name] = largest_error(found.taps.at(name), value);
  }
  for (const auto& [id, gradient] : exact.gradients.sums) {
    const std::string name = std::to_string(id.value());
    const at::Tensor sum = found.gradients.sums.at(id).to(at::kDouble);
    all["gradient " + name] = length_error(sum, gradient);
    // A flipped ReLU causes a random error, a wrong factor a systematic one.
    const double factor =
        (sum * gradient).sum().item<double>() / gradient.square().sum().item<double>();
    all["factor of gradient " + name] = std::abs(factor - 1);
  }
  return all;
}

/// Compares `found`, computed with the fixture's weights in `dtype`, with float64; returns the errors.
std::map<std::string, double> check_near(const Result& found, const BdhFixture& fixture,
                                         at::ScalarType dtype) {
  const testing::Disturbance disturbance(
      dtype, 2 * testing::roundings_of_forward(fixture.sizes, 19, dtype));  // and backward
  const Result exact = train_once(fixture.widened());
  const auto bounds = testing::bounds_of(disturbance, [&](double relative, std::uint64_t draw) {
    return errors(train_once(fixture.widened(relative, draw)), exact);
  });
  const std::map<std::string, double> all = errors(found, exact);
  for (const auto& [name, error] : all) {
    CAPTURE(name);
    CHECK(error <= bounds.at(name));
  }
  return all;
}

TEST_CASE(
    "In 16-bit dtypes logits, losses and gradients are near float64's, with larger errors than "
    "float32's") {
  const at::ScalarType dtype = GENERATE(at::kBFloat16, at::kHalf);
  BdhSizes sizes = kSizes;
  sizes.dropout = 0.2;
  const BdhFixture fixture = fixture_of(sizes, dtype, dtype);
  const Result found = train_once(fixture);
  CHECK(found.losses.scalar_type() == at::kFloat);
  CHECK(found.taps.at("logits").scalar_type() == at::kFloat);
  CHECK(found.taps.at("act.layer1.out").scalar_type() == dtype);
  REQUIRE(found.gradients.sums.size() == 5);
  check_near(found, fixture, dtype);
  CHECK_FALSE(at::equal(found.losses, train_once(fixture_of(sizes, at::kFloat, dtype)).losses));
}

TEST_CASE("Scores beyond float16's range keep results finite and near float64's") {
  const BdhFixture fixture = fixture_of(kSizes, at::kHalf, at::kHalf);
  // About N / 4 * (64 * 0.25)^2 * D, about 100,000 for a position with itself.
  fixture.exported("encoder").mul_(64);
  check_near(train_once(fixture), fixture, at::kHalf);
}

TEST_CASE("The gradient of a frequent token is not lost to rounding") {
  const at::ScalarType dtype = GENERATE(at::kBFloat16, at::kHalf);
  const BdhSizes sizes{.layers = 1, .width = 4, .heads = 1, .neurons = 4, .vocab = 3};
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
  // The norm's input and output, the gradient and its sum are rounded; 8,000 are added in float32.
  CHECK(largest_error(gradient(dtype), gradient(at::kDouble)) <=
        testing::rounding_bound(dtype, 4) + testing::rounding_bound(at::kFloat, 8000));
}

TEST_CASE("bfloat16 tables change results within the bound of their rounding") {
  // Rounding the table only changes results less than bfloat16 throughout.
  const BdhFixture fixture = fixture_of(kSizes, at::kFloat, at::kFloat);
  const Result found = train_once(fixture, at::kBFloat16);
  check_near(found, fixture, at::kBFloat16);
  CHECK_FALSE(at::equal(found.losses, train_once(fixture).losses));
}

TEST_CASE("LayerNorm's gradient has float32 statistics in 16-bit dtypes") {
  const at::ScalarType dtype = GENERATE(at::kBFloat16, at::kHalf);
  auto generator = at::make_generator<at::CPUGeneratorImpl>(std::uint64_t{33});
  const at::Tensor values = at::randn({64, 32}, generator).to(dtype);
  const at::Tensor upstream = at::randn({64, 32}, generator).to(dtype);
  const auto gradient = [&](at::ScalarType computed) {
    const at::Tensor x = values.to(computed).detach().requires_grad_();
    return torch::autograd::grad({layer_norm(x)}, {x}, {upstream.to(computed)})[0];
  };
  // One rounding of the result, after float32 sums over 32 values: rounded statistics would add
  // an error of the same size.
  const at::Tensor exact = gradient(at::kDouble);
  const double before =
      testing::rounding_bound(at::kFloat, 3 * 32) * exact.abs().max().item<double>();
  CHECK(
      at::allclose(gradient(dtype).to(at::kDouble), exact, testing::unit_roundoff(dtype), before));
}

}  // namespace
}  // namespace dtrain::model::bdh::low_precision_test
