// LibTorch and the reduction on ranges of arenas, range by range: an element gets the same
// bits wherever the range begins and ends. (The optimizers' own rules: optim/update_rules_test.)
#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <functional>
#include <vector>

#include "dtrain/comm/reduce.h"
#include "support/values.h"

namespace dtrain::element_bits_test {
namespace {

// More than four vectors of the widest instructions in float32, and a rest.
constexpr std::int64_t kCount = 75;
constexpr at::ScalarType kFloats[] = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};

using Operation = std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>;

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

at::Tensor reduced(const at::Tensor& a, const at::Tensor& b, std::int64_t copies) {
  std::vector<const std::byte*> inputs;
  for (std::int64_t i = 0; i < copies; ++i) {
    const at::Tensor& input = i % 2 == 0 ? a : b;
    inputs.push_back(static_cast<const std::byte*>(input.const_data_ptr()));
  }
  const at::Tensor sum = at::empty_like(a);
  comm::reduce_in_tree_order(inputs, static_cast<std::byte*>(sum.mutable_data_ptr()), a.numel(),
                             a.scalar_type(), comm::ReduceOp::sum);
  return sum;
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
    check_every_range([&](const auto& x, const auto& y) { return reduced(x, y, ranks); }, a, b);
  }
}

}  // namespace
}  // namespace dtrain::element_bits_test
