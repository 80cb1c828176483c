#include "dtrain/model/bdh/chunked_attention.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <catch2/catch.hpp>
#include <cstdint>

namespace dtrain::model::bdh::chunked_attention_test {
namespace {

constexpr std::int64_t kLength = 40;

at::Tensor leaf(std::uint64_t seed, std::int64_t columns, double scale, at::ScalarType dtype) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const at::Tensor values = at::randn({3, kLength, columns}, generator, at::kDouble);
  return values.mul(scale).to(dtype).set_requires_grad(true);
}

double relative_error(const at::Tensor& found, const at::Tensor& expected) {
  return ((found.to(at::kDouble) - expected).norm() / expected.norm()).item<double>();
}

TEST_CASE("Chunks of any size attend as a whole square does, forward and backward") {
  const at::ScalarType dtype = GENERATE(at::kDouble, at::kFloat, at::kBFloat16, at::kHalf);
  const std::int64_t chunk = GENERATE(1, 7, 16, 39);  // the last one is shorter, but for 1
  INFO(dtype << " chunk " << chunk);
  const at::Tensor q = leaf(1, 20, 0.3, dtype);
  const at::Tensor values = leaf(2, 6, 1, dtype == at::kHalf ? at::kFloat : dtype);
  const at::Tensor gradient = leaf(3, 6, 1, at::kDouble).detach();
  const at::Tensor whole_q = q.detach().to(at::kDouble).set_requires_grad(true);
  const at::Tensor whole_values = values.detach().to(at::kDouble).set_requires_grad(true);
  const at::Tensor found = attend_in_chunks(q, values, chunk);
  const at::Tensor expected = at::bmm(at::bmm(whole_q, whole_q.mT()).tril(-1), whole_values);
  torch::autograd::backward({found}, {gradient.to(values.scalar_type())});
  torch::autograd::backward({expected}, {gradient});
  CHECK(found.scalar_type() == values.scalar_type());
  // Half of the last digit of what is rounded: a handful of partial sums.
  const double bound = dtype == at::kDouble  ? 1e-14
                       : dtype == at::kFloat ? 1e-6
                       : dtype == at::kHalf  ? 2e-3
                                             : 1.6e-2;
  CHECK(relative_error(found, expected) < bound);
  CHECK(relative_error(q.grad(), whole_q.grad()) < bound);
  CHECK(relative_error(values.grad(), whole_values.grad()) < bound);
}

}  // namespace
}  // namespace dtrain::model::bdh::chunked_attention_test
