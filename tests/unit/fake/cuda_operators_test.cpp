// Tests that the fake device rejects what LibTorch's CUDA kernels reject.
#include "support/fake_device/operators/cuda_operators.h"

#include "support/messages.h"
#include "unit/fake/fixture.h"

namespace dtrain::testing::fake::cuda_operators_test {
namespace {

at::Tensor rows_of(at::ScalarType dtype) {
  return at::arange(6 * 8, at::kFloat).mul(0.61803).sin().view({6, 8}).to(dtype).to(kDevice);
}

TEST_CASE("A norm weight with another dtype than the input is rejected") {
  const Fixture fixture(GENERATE(Execution::prompt, Execution::late));
  const at::Tensor x = rows_of(at::kBFloat16);
  const at::Tensor ones = at::ones({8}, on_device());
  CHECK_THROWS_WITH(at::layer_norm(x, {8}, ones), Names("layer norm", "BFloat16", "Float"));
  CHECK_THROWS_WITH(at::native_layer_norm_backward(x, x, {8}, ones, ones, ones, {}, {true}),
                    Names("layer norm", "BFloat16", "Float"));
  expect_equal(at::layer_norm(x, {8}, ones.to(at::kBFloat16)).cpu(),
               at::layer_norm(x.cpu(), {8}, at::ones({8}, at::kBFloat16)));
}

TEST_CASE("A 16-bit norm without a weight has float32 statistics") {
  const Fixture fixture(GENERATE(Execution::prompt, Execution::late));
  const at::ScalarType dtype = GENERATE(at::kBFloat16, at::kHalf);
  const auto [normed, mean, deviation] = at::native_layer_norm(rows_of(dtype), {8}, {}, {}, 1e-5);
  CHECK(normed.scalar_type() == dtype);
  CHECK(mean.scalar_type() == at::kFloat);
  CHECK(deviation.scalar_type() == at::kFloat);
  const auto [expected, expected_mean, expected_deviation] =
      at::native_layer_norm(rows_of(dtype).cpu(), {8}, at::ones({8}, at::kFloat), {}, 1e-5);
  expect_equal(normed.cpu(), expected);
  expect_equal(mean.cpu(), expected_mean);
  expect_equal(deviation.cpu(), expected_deviation);
}

TEST_CASE("Norm rows must be aligned for vector loads") {
  const Fixture fixture;
  const at::Tensor flat = at::ones({6 * 8 + 2}, on_device());
  CHECK_THROWS_WITH(at::layer_norm(flat.narrow(0, 2, 6 * 8).view({6, 8}), {8}),
                    Catch::Contains("begin 8 bytes later"));
  CHECK_NOTHROW(at::layer_norm(flat.narrow(0, 2, 6 * 7).view({6, 7}), {7}));
}

TEST_CASE("Integer products are rejected") {
  const Fixture fixture;
  const at::Tensor whole = at::ones({3, 3}, on_device().dtype(at::kLong));
  CHECK_THROWS_WITH(at::mm(whole, whole), Names("mm", "CUDA", "Long"));
  CHECK_THROWS_WITH(at::bmm(whole.unsqueeze(0), whole.unsqueeze(0)), Names("bmm", "CUDA", "Long"));
}

TEST_CASE("Scattering several values to one element is rejected") {
  const Fixture fixture;
  const auto add_at = [](std::int64_t indices) {
    at::Tensor sums = at::zeros({2, 5}, on_device());
    const at::Tensor index = at::zeros({2, indices}, on_device().dtype(at::kLong));
    return sums.scatter_add_(1, index, at::ones({2, indices}, on_device()));
  };
  CHECK_THROWS_WITH(add_at(3), Names("scatter_add", "[2, 3]"));
  CHECK(add_at(1).sum().item<float>() == 2);
}

TEST_CASE("Operators are recorded by their short names") {
  const Fixture fixture;
  at::Tensor x = at::ones({4}, on_device());
  x.sub_(1);
  at::sub_out(x, x, x);
  (void)at::sinh(x);
  CHECK(called_operators().contains("sub"));
  CHECK(unlisted_operators().contains("sinh"));
  CHECK_FALSE(unlisted_operators().contains("sub"));
  CHECK_FALSE(called_operators().contains("view"));
}

}  // namespace
}  // namespace dtrain::testing::fake::cuda_operators_test
