#include "dtrain/comm/reduce.h"

#include <catch2/catch.hpp>
#include <limits>
#include <vector>

#include "support/values.h"

namespace dtrain::comm::reduce_test {
namespace {

using testing::same_bits;

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

TEST_CASE("Small contributions of 16 bits are not lost beside a large one") {
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

}  // namespace
}  // namespace dtrain::comm::reduce_test
