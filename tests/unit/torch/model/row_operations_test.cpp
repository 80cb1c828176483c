// Compares the fused row operations of transformers with LibTorch's operators in float64.
#include "dtrain/model/transformer/row_operations.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <catch2/catch.hpp>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "dtrain/kernels/row_types.h"
#include "dtrain/model/transformer/internal/transformer_rows.h"
#include "support/oracles/rounding.h"
#include "support/values.h"

namespace dtrain::model::row_operations_test {
namespace {

using testing::largest_error;

const RowOperations& plain() { return row_operations(config::Kernels::plain); }
const RowOperations& fused() { return row_operations(config::Kernels::fused); }

constexpr double kEpsilon = 1e-5;
constexpr std::int64_t kHeads = 3;

struct Size {
  std::int64_t rows;
  std::int64_t count;  // even
};

// One operation on differentiable inputs.
struct Operation {
  std::string name;
  std::vector<std::vector<std::int64_t>> (*shapes)(const Size& size);
  std::function<at::Tensor(const RowOperations&, const std::vector<at::Tensor>&)> apply;
};

RotaryTable table_of(std::int64_t length, std::int64_t size, const at::TensorOptions& options) {
  const at::Tensor angles = at::arange(length * size / 2, at::kDouble).view({length, size / 2});
  return {.cosine = angles.cos().to(options), .sine = angles.sin().to(options)};
}

const std::vector<Operation>& operations() {
  static const std::vector<Operation> kOperations{
      {"rms_norm",
       [](const Size& s) {
         return std::vector<std::vector<std::int64_t>>{{s.rows, s.count}, {s.count}};
       },
       [](const RowOperations& rows, const std::vector<at::Tensor>& in) {
         return rows.rms_norm(in[0], in[1], kEpsilon);
       }},
      {"rotate_halves of a linear map's heads",
       [](const Size& s) {
         return std::vector<std::vector<std::int64_t>>{{2, s.rows, kHeads, s.count}};
       },
       [](const RowOperations& rows, const std::vector<at::Tensor>& in) {
         const RotaryTable table = table_of(in[0].size(1), in[0].size(3), in[0].options());
         return rows.rotate_halves(in[0].transpose(1, 2), table);
       }},
      {"rotate_halves of contiguous heads",
       [](const Size& s) {
         return std::vector<std::vector<std::int64_t>>{{kHeads, s.rows, s.count}};
       },
       [](const RowOperations& rows, const std::vector<at::Tensor>& in) {
         return rows.rotate_halves(in[0], table_of(in[0].size(1), in[0].size(2), in[0].options()));
       }},
      {"swiglu",
       [](const Size& s) {
         return std::vector<std::vector<std::int64_t>>{{s.rows, s.count}, {s.rows, s.count}};
       },
       [](const RowOperations& rows, const std::vector<at::Tensor>& in) {
         return rows.swiglu(in[0], in[1]);
       }},
      {"gelu",
       [](const Size& s) {
         return std::vector<std::vector<std::int64_t>>{{s.rows, s.count}};
       },
       [](const RowOperations& rows, const std::vector<at::Tensor>& in) {
         return rows.gelu(in[0]);
       }},
      {"cross_entropy",
       [](const Size& s) {
         return std::vector<std::vector<std::int64_t>>{{s.rows, s.count}};
       },
       [](const RowOperations& rows, const std::vector<at::Tensor>& in) {
         return rows.cross_entropy(in[0], at::arange(in[0].size(0), at::kLong) % in[0].size(1));
       }}};
  return kOperations;
}

std::vector<at::Tensor> inputs_of(const Operation& operation, const Size& size,
                                  at::ScalarType dtype) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(std::uint64_t{7});
  std::vector<at::Tensor> inputs;
  for (const auto& shape : operation.shapes(size)) {
    inputs.push_back((2 * at::randn(shape, generator, at::kDouble)).to(dtype));
  }
  return inputs;
}

// The result and the gradients of the inputs.
std::vector<at::Tensor> results_of(const Operation& operation, const RowOperations& rows,
                                   std::vector<at::Tensor> inputs) {
  for (at::Tensor& input : inputs) input = input.detach().clone().set_requires_grad(true);
  const at::Tensor out = operation.apply(rows, inputs);
  auto generator = at::make_generator<at::CPUGeneratorImpl>(std::uint64_t{8});
  // Values that each dtype represents exactly.
  const at::Tensor gradient = at::randint(-8, 9, out.sizes(), generator, at::kDouble) / 4;
  torch::autograd::backward({out}, {gradient.to(out.scalar_type())});
  std::vector<at::Tensor> results{out.detach()};
  for (const at::Tensor& input : inputs) results.push_back(input.grad());
  return results;
}

std::vector<at::Tensor> in_float64(std::vector<at::Tensor> values) {
  for (at::Tensor& value : values) value = value.to(at::kDouble);
  return values;
}

TEST_CASE("Fused row operations and their gradients are LibTorch's, to rounding") {
  for (const Operation& operation : operations()) {
    for (const Size& size : {Size{1, 2}, Size{3, 6}, Size{70, 176}, Size{130, 18}}) {
      for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
        INFO(operation.name << ", " << size.rows << " rows of " << size.count << ", " << dtype);
        const auto inputs = inputs_of(operation, size, dtype);
        const auto found = results_of(operation, fused(), inputs);
        const auto expected = results_of(operation, plain(), in_float64(inputs));
        const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
        // Sums over a row or over all rows, and thirty operations on an element, on values of which
        // the largest is at least a thirtieth of the sum of magnitudes of random signs; then at most
        // three roundings to the dtype.
        const double roundings = static_cast<double>(size.rows + size.count + 30);
        const double bound =
            30 * testing::rounding_bound(wide, roundings) + 3 * testing::unit_roundoff(dtype);
        for (std::size_t i = 0; i < found.size(); ++i) {
          INFO("result " << i);
          CHECK(largest_error(found[i], expected[i]) <= bound);
        }
      }
    }
  }
}

TEST_CASE("The bits of fused row operations do not depend on threads") {
  for (const Operation& operation : operations()) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      INFO(operation.name << ", " << dtype);
      const auto inputs = inputs_of(operation, {201, 700}, dtype);
      std::vector<at::Tensor> expected;
      {
        const testing::Threads one(1);
        expected = results_of(operation, fused(), inputs);
      }
      const testing::Threads three(3);
      const auto found = results_of(operation, fused(), inputs);
      for (std::size_t i = 0; i < found.size(); ++i) {
        CHECK(testing::same_bits(found[i].contiguous(), expected[i].contiguous()));
      }
    }
  }
}

// All results of one table on rows of an odd length, whose bits are compared.
template <typename S, typename W>
at::Tensor results_of(const TransformerRows<S, W>& rows) {
  constexpr long kCount = 77;
  constexpr at::ScalarType kType = sizeof(S) == 2   ? at::kBFloat16
                                   : sizeof(S) == 4 ? at::kFloat
                                                    : at::kDouble;
  const at::Tensor values = testing::values_of(3, 3 * kCount, at::kDouble).clamp(-20, 20).to(kType);
  const auto* x = static_cast<const S*>(values.const_data_ptr());
  const S* y = x + kCount;
  const S* z = y + kCount;
  std::vector<at::Tensor> all;
  const auto out = [&](at::ScalarType type) {
    all.push_back(at::zeros({kCount}, type));
    return all.back().mutable_data_ptr();
  };
  const auto low = [&] { return static_cast<S*>(out(kType)); };
  const auto wide = [&] {
    return static_cast<W*>(out(sizeof(W) == sizeof(float) ? at::kFloat : at::kDouble));
  };
  *wide() = rows.rms_norm(x, y, kEpsilon, low(), kCount);
  rows.rms_norm_backward(z, x, y, static_cast<W>(0.37), low(), wide(), kCount);
  rows.rotate_halves(x, y, z, -1, low(), kCount / 2);
  rows.swiglu(x, y, low(), kCount);
  S* d_gate = low();
  rows.swiglu_backward(z, x, y, d_gate, low(), kCount);
  rows.gelu(x, low(), kCount);
  rows.gelu_backward(y, x, low(), kCount);
  const kernels::LogSum<W> sum = rows.log_sum_exp(x, kCount);
  W* sums = wide();
  sums[0] = sum.top;
  sums[1] = sum.log_sum;
  rows.logits_backward(x, sum, static_cast<W>(0.5), 5, low(), kCount);
  rows.add(sums, wide(), kCount);
  for (at::Tensor& each : all) each = each.to(at::kDouble);  // exact
  return at::cat(all);
}

template <typename S, typename W>
void check_sets(const TransformerRows<S, W>& baseline, const TransformerRows<S, W>& avx2,
                const TransformerRows<S, W>& avx512) {
  const at::Tensor expected = results_of(baseline);
  const kernels::InstructionSet best = kernels::instruction_set();
  if (best >= kernels::InstructionSet::avx2) CHECK(at::equal(results_of(avx2), expected));
  if (best >= kernels::InstructionSet::avx512) CHECK(at::equal(results_of(avx512), expected));
}

TEST_CASE("The bits of fused row operations do not depend on the instruction set") {
  check_sets(kFloatTransformerBaseline, kFloatTransformerAvx2, kFloatTransformerAvx512);
  check_sets(kDoubleTransformerBaseline, kDoubleTransformerAvx2, kDoubleTransformerAvx512);
  check_sets(kBfloat16TransformerBaseline, kBfloat16TransformerAvx2, kBfloat16TransformerAvx512);
}

TEST_CASE("Fused activations and their gradients stay finite at large inputs and propagate NaN") {
  for (const float x : {-3e4F, -90.0F, 90.0F, 3e4F}) {
    INFO(x);
    const at::Tensor value = at::full({40}, x);
    for (const Operation& operation : operations()) {
      if (operation.name != "swiglu" && operation.name != "gelu") continue;
      INFO(operation.name);
      const auto found = results_of(operation, fused(), {value, at::ones({40})});
      CHECK(at::allclose(found[0], value.clamp_min(0)));
      CHECK(
          at::allclose(found[1], (value > 0).to(at::kFloat) *
                                     (results_of(operation, plain(), {value, at::ones({40})})[1])));
    }
  }
  at::Tensor with_nan = at::ones({2, 40});
  with_nan[1][33] = std::numeric_limits<float>::quiet_NaN();
  for (const Operation& operation : operations()) {
    INFO(operation.name);
    std::vector<at::Tensor> inputs = inputs_of(operation, {2, 40}, at::kFloat);
    inputs[0].view({-1, 40})[1] = with_nan[1];
    const auto found = results_of(operation, fused(), inputs);
    const auto expected = results_of(operation, plain(), inputs);
    CHECK(found[0].isnan().any().item<bool>());
    for (std::size_t i = 0; i < found.size(); ++i) {
      CHECK(at::equal(found[i].isnan(), expected[i].isnan()));
    }
  }
}

TEST_CASE("A frozen norm has no gradient, and its input has one") {
  const at::Tensor x = at::randn({3, 8}).set_requires_grad(true);
  const at::Tensor weight = at::ones({8});
  torch::autograd::backward({fused().rms_norm(x, weight, kEpsilon).sum()}, {});
  CHECK(x.grad().defined());
  CHECK_FALSE(weight.grad().defined());
}

}  // namespace
}  // namespace dtrain::model::row_operations_test
