#include "dtrain/param/parameter_use.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "support/ids.h"
#include "support/oracles/rounding.h"

namespace dtrain::param::parameter_use_test {
namespace {

using testing::operator""_p;

/// Accumulates gradients like the arena, and counts uses.
class SummingSink : public GradientSink {
 public:
  void add_gradient(ParameterId id, const at::Tensor& grad) override {
    ++uses[id];
    sums[id] = sums[id].defined() ? sums[id] + grad : grad.clone();
  }

  std::map<ParameterId, std::int64_t> uses;
  std::map<ParameterId, at::Tensor> sums;
};

at::Tensor leaf_of(at::IntArrayRef shape, std::uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn(shape, generator, at::kDouble).requires_grad_();
}

TEST_CASE("A use shares the parameter's memory") {
  const at::Tensor weight = leaf_of({5}, 1);
  SummingSink sink;
  CHECK(use_parameter(weight, 0_p, sink).const_data_ptr() == weight.const_data_ptr());
}

TEST_CASE("A parameter may change between forward and backward of a graph that did not save it") {
  const at::Tensor weight = leaf_of({5}, 1);
  SummingSink sink;
  const at::Tensor loss = (use_parameter(weight, 0_p, sink) * 3).sum();
  {
    const at::NoGradGuard no_grad;
    weight.zero_();
  }
  torch::autograd::backward({loss}, {});
  CHECK(at::equal(sink.sums[0_p], at::full({5}, 3.0, at::kDouble)));
}

TEST_CASE("Gradients of 16-bit uses arrive in their dtype and accumulate in float32") {
  const at::ScalarType dtype = GENERATE(at::kBFloat16, at::kHalf);
  class ArenaSink : public GradientSink {
   public:
    void add_gradient(ParameterId, const at::Tensor& grad) override {
      dtypes.push_back(grad.scalar_type());
      sum.add_(grad);
      last.copy_(grad);
    }
    std::vector<at::ScalarType> dtypes;
    at::Tensor sum = at::zeros({3});
    at::Tensor last = at::zeros({3});
  };
  const at::Tensor weight = at::ones({3}, dtype).requires_grad_();
  ArenaSink sink;
  // 4,096 and 1 are exact in 16 bits, but their sum is not.
  const at::Tensor large = use_parameter(weight, 0_p, sink) * 4096;
  const at::Tensor small = use_parameter(weight, 0_p, sink) * 1;
  torch::autograd::backward({(large + small).sum()}, {});
  CHECK(sink.dtypes == std::vector<at::ScalarType>{dtype, dtype});
  CHECK(at::equal(sink.sum, at::full({3}, 4097.0F)));
  CHECK(sink.last.scalar_type() == at::kFloat);
}

TEST_CASE(
    "A float32 gradient takes the first bfloat16 gradient unchanged and adds others exactly") {
  class Float32Memory : public GradientMemory {
   public:
    GradientTarget gradient_of(ParameterId) override {
      return {.view = gradient, .is_first = std::exchange(is_empty, false)};
    }
    at::Tensor gradient = at::full({2}, std::numeric_limits<float>::quiet_NaN());
    bool is_empty = true;
  };
  Float32Memory memory;
  memory.add_gradient(0_p, at::tensor({1.0F, -0.0F}).to(at::kBFloat16));
  CHECK(at::equal(memory.gradient, at::tensor({1.0F, 0.0F})));
  CHECK(std::signbit(memory.gradient[1].item<float>()));
  memory.add_gradient(0_p, at::full({2}, 0x1p-10, at::kBFloat16));
  // bfloat16 would round the first sum to 1.
  CHECK(at::equal(memory.gradient, at::tensor({1 + 0x1p-10F, 0x1p-10F})));
}

TEST_CASE("Without grad mode the leaf itself is returned, and for a frozen parameter its values") {
  const at::Tensor weight = leaf_of({5}, 1);
  SummingSink sink;
  {
    const at::NoGradGuard no_grad;
    CHECK(use_parameter(weight, 0_p, sink).is_same(weight));
  }
  const at::Tensor frozen = weight.detach();
  const at::Tensor values = use_parameter(frozen, 0_p, sink);  // (5)
  CHECK(values.data_ptr() == frozen.data_ptr());
  CHECK_FALSE(values.requires_grad());
  CHECK(sink.uses.empty());
}

TEST_CASE("A use that does not affect the loss adds no gradient") {
  const at::Tensor weight = leaf_of({5}, 1);
  SummingSink sink;
  const at::Tensor unused = use_parameter(weight, 0_p, sink) * 2;
  torch::autograd::backward({use_parameter(weight, 1_p, sink).sum()}, {});
  CHECK((sink.uses == std::map<ParameterId, std::int64_t>{{1_p, 1}}));
}

}  // namespace
}  // namespace dtrain::param::parameter_use_test
