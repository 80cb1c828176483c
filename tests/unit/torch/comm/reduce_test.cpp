#include "dtrain/comm/reduce.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <functional>
#include <limits>
#include <vector>

#include "support/values.h"

namespace dtrain::comm::reduce_test {
namespace {

using testing::same_bits;
using Operation = std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>;

at::Tensor reduced(const std::vector<at::Tensor>& inputs, ReduceOp op) {
  std::vector<const std::byte*> bytes;
  for (const at::Tensor& input : inputs) {
    bytes.push_back(static_cast<const std::byte*>(input.const_data_ptr()));
  }
  const at::Tensor output = at::empty_like(inputs[0]);
  reduce_in_tree_order(bytes, static_cast<std::byte*>(output.data_ptr()), output.numel(),
                       output.scalar_type(), op);
  return output;
}

TEST_CASE("Small 16-bit contributions are not lost next to a large one") {
  const at::ScalarType dtype = GENERATE(at::kBFloat16, at::kHalf);
  std::vector<at::Tensor> inputs(64, at::ones({5}, dtype));
  inputs[0] = at::full({5}, 4096, dtype);  // beside which 1 is less than half a unit in both
  const at::Tensor expected = at::full({5}, 4096 + 63, at::kFloat).to(dtype);
  CHECK(same_bits(reduced(inputs, ReduceOp::sum), expected));
}

TEST_CASE("The maximum in 16 bits is exact, and a NaN wins") {
  const at::ScalarType dtype = GENERATE(at::kBFloat16, at::kHalf);
  std::vector<at::Tensor> inputs;
  for (std::int64_t rank = 0; rank < 3; ++rank) {
    inputs.push_back(testing::values_of(rank, 100, dtype));
  }
  const at::Tensor expected = at::maximum(at::maximum(inputs[0], inputs[1]), inputs[2]);
  CHECK(same_bits(reduced(inputs, ReduceOp::max), expected));
  inputs[1][7] = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor found = reduced(inputs, ReduceOp::max);
  CHECK(at::isnan(found).sum().item<std::int64_t>() == 1);
  CHECK(at::isnan(found[7]).item<bool>());
}

// LibTorch and the reduction on ranges of arenas, range by range: an element gets the same
// bits wherever the range begins and ends. (The optimizers' own rules: optim/update_rules_test.)
// More than four vectors of the widest instructions in float32, and a rest.
constexpr std::int64_t kCount = 75;
constexpr at::ScalarType kFloats[] = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};

// `operation` of every range of two tensors, beside the same range of its result for all.
void check_every_range(const Operation& operation, const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor whole = operation(a, b);
  for (std::int64_t begin = 0; begin < kCount; ++begin) {
    for (std::int64_t end = begin + 1; end <= kCount; ++end) {
      const at::Tensor part = operation(a.slice(0, begin, end), b.slice(0, begin, end));
      if (testing::same_bits(part, whole.slice(0, begin, end))) continue;
      FAIL("elements " << begin << " to " << end << " of " << a.scalar_type());
    }
  }
}

TEST_CASE("Sums, scaling and casts give an element the same bits in every range") {
  const at::ScalarType dtype = GENERATE(from_range(std::begin(kFloats), std::end(kFloats)));
  const at::Tensor a = testing::values_of(1, kCount, dtype);
  const at::Tensor b = testing::values_of(2, kCount, dtype);
  check_every_range([](const auto& x, const auto& y) { return x.clone().add_(y); }, a, b);
  check_every_range(
      [](const auto& x, const auto& y) {
        at::Tensor sum = y.clone();
        return at::add_out(sum, x, sum);
      },
      a, b);
  check_every_range([](const auto& x, const auto&) { return x.clone().mul_(0.37); }, a, b);
  for (const at::ScalarType other : kFloats) {
    check_every_range([&](const auto& x, const auto&) { return x.to(other, false, true); }, a, b);
    // Gradients of one dtype are added to sums of another.
    check_every_range([](const auto& x, const auto& y) { return x.clone().add_(y); }, a,
                      b.to(other));
  }
  for (const std::int64_t ranks : {2, 3, 4}) {
    const auto sum = [&](const at::Tensor& x, const at::Tensor& y) {
      std::vector<at::Tensor> inputs;
      for (std::int64_t i = 0; i < ranks; ++i) inputs.push_back(i % 2 == 0 ? x : y);
      return reduced(inputs, ReduceOp::sum);
    };
    check_every_range(sum, a, b);
  }
}

}  // namespace
}  // namespace dtrain::comm::reduce_test
