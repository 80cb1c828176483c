#include "dtrain/kernels/gemm.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <tuple>
#include <vector>

#include "dtrain/metrics/tensor_memory.h"
#include "support/oracles/rounding.h"

namespace dtrain::kernels::gemm_test {
namespace {

// A strided view of a (m, k), or of the transpose of a (k, m).
template <typename T>
Matrix<const T> view(const at::Tensor& a) {
  return {a.const_data_ptr<T>(), a.size(0), a.size(1), a.stride(0), a.stride(1)};
}

template <typename T>
constexpr at::ScalarType kType = c10::CppTypeToScalarType<T>::value;

at::Tensor random(std::int64_t rows, std::int64_t columns, bool is_transposed,
                  at::ScalarType type) {
  const at::Tensor values =
      is_transposed ? at::randn({columns, rows}).t() : at::randn({rows, columns});
  return values.to(type);
}

// The error bound: an element of c adds k products to its old value with k + 1 roundings in the
// accumulation type, in any order, fused or not. The expected value has as many in float64.
template <typename T>
void check_sizes() {
  using Sum = typename SumOf<T>::Type;
  const std::tuple<int, int, int> sizes[] = {
      {1, 1, 1},      {7, 5, 3},  {8, 32, 256},    {17, 33, 300}, {64, 96, 31},
      {37, 130, 513}, {2, 16, 1}, {131, 70, 1027}, {140, 9, 62},  {129, 40, 1088}};
  Gemm<T> product;
  for (const auto& [m, n, k] : sizes) {
    for (const bool turns_a : {false, true}) {
      for (const bool turns_b : {false, true}) {
        for (const bool adds : {false, true}) {
          INFO(m << " x " << n << " x " << k << (turns_a ? " aT" : "") << (turns_b ? " bT" : ""));
          const at::Tensor a = random(m, k, turns_a, kType<T>);
          const at::Tensor b = random(k, n, turns_b, kType<T>);
          // A margin that must stay as it is.
          const at::Tensor c = at::randn({m, n + 3}).to(kType<Sum>);
          at::Tensor expected = c.to(at::kDouble);
          const at::Tensor sum = at::mm(a.to(at::kDouble), b.to(at::kDouble));
          const at::Tensor before = c.narrow(1, 0, n).to(at::kDouble) * (adds ? 1 : 0);
          expected.narrow(1, 0, n).copy_(before + sum);
          const at::Tensor magnitudes =
              before.abs() + at::mm(a.to(at::kDouble).abs(), b.to(at::kDouble).abs());
          const Matrix<Sum> out{c.mutable_data_ptr<Sum>(), m, n, n + 3};
          product.multiply(view<T>(a), view<T>(b), out, adds);
          const at::Tensor error = (c.to(at::kDouble) - expected).narrow(1, 0, n).abs();
          const double bound = testing::rounding_bound(kType<Sum>, k + 1) +
                               testing::rounding_bound(at::kDouble, k + 1);
          CHECK((error <= bound * magnitudes).all().template item<bool>());
          CHECK(at::equal(c.narrow(1, n, 3).to(at::kDouble), expected.narrow(1, n, 3)));
        }
      }
    }
  }
}

TEST_CASE("Gemm.EqualsLibTorchInFloat64ForAllSizesAndStrides") {
  at::manual_seed(1);
  check_sizes<float>();
  check_sizes<double>();
  check_sizes<c10::BFloat16>();
}

// A copy of `a` that begins `skipped` elements into its memory, so that 32-bit words are unaligned.
at::Tensor moved(const at::Tensor& a, std::int64_t skipped) {
  const at::Tensor memory = at::empty({skipped + a.numel()}, a.options());
  const at::Tensor found = memory.as_strided(a.sizes(), a.strides(), skipped);
  return found.copy_(a);
}

TEST_CASE("Gemm.ReadsUnalignedOperands") {
  at::manual_seed(4);
  for (const bool turns : {false, true}) {
    const at::Tensor a = random(30, 66, turns, at::kBFloat16);
    const at::Tensor b = random(66, 50, turns, at::kBFloat16);
    const at::Tensor expected = at::zeros({30, 50});
    const at::Tensor found = at::zeros({30, 50});
    Gemm<c10::BFloat16> product;
    using Numbers = c10::BFloat16;
    product.write(view<Numbers>(a), view<Numbers>(b), {expected.mutable_data_ptr<float>(), 30, 50});
    product.write(view<Numbers>(moved(a, 1)), view<Numbers>(moved(b, 3)),
                  {found.mutable_data_ptr<float>(), 30, 50});
    CHECK(at::equal(found, expected));
  }
}

TEST_CASE("Gemm.PadsBfloat16ToDepthsThatAmxSupports") {
  for (std::int64_t depth = 1; depth < 1100; ++depth) {
    const std::int64_t padded = padded_depth(depth);
    REQUIRE(padded % 32 == 0);
    REQUIRE((padded >= depth && padded < depth + 32));
  }
}

template <typename T>
void check_memory(std::int64_t rows, const OperandSize& size) {
  const at::Tensor a = at::zeros({rows, size.depth}, kType<T>);
  const at::Tensor b = at::zeros({size.depth, size.columns}, kType<T>);
  const at::Tensor c = at::zeros({rows, size.columns}, kType<typename SumOf<T>::Type>);
  const std::int64_t before = metrics::memory_use().current;
  metrics::restart_peak();
  Gemm<T> product;
  product.write(view<T>(a), view<T>(b),
                {c.mutable_data_ptr<typename SumOf<T>::Type>(), rows, size.columns});
  const std::int64_t taken = metrics::memory_use().peak - before;
  INFO(rows << " rows, depth " << size.depth << ", " << size.columns << " columns");
  CHECK(taken == Gemm<T>::bytes(size));
}

TEST_CASE("Gemm.AllocatesThePredictedMemoryForAnyNumberOfRowsAndDepth") {
  metrics::install_counting_allocator();
  for (const OperandSize& size :
       {OperandSize{5, 7}, OperandSize{100, 64}, OperandSize{3000, 200}}) {
    check_memory<float>(700, size);
    check_memory<double>(700, size);
    check_memory<c10::BFloat16>(700, size);
  }
  CHECK(Gemm<c10::BFloat16>::bytes({8192, 256}) == Gemm<c10::BFloat16>::bytes({512, 256}));
}

// Computes an m x n x k product at once and in blocks of `rows` x `columns`.
template <typename T>
void check_cuts(std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t kRows = 45, kColumns = 100, kDepth = 300;
  const at::Tensor a = random(kRows, kDepth, false, kType<T>);
  const at::Tensor b = random(kDepth, kColumns, true, kType<T>);
  const at::Tensor whole = at::zeros({kRows, kColumns}, kType<T>);
  const at::Tensor cut = at::zeros_like(whole);
  Gemm<T> product;
  product.write(view<T>(a), view<T>(b), {whole.mutable_data_ptr<T>(), kRows, kColumns});
  const Matrix<T> out{cut.mutable_data_ptr<T>(), kRows, kColumns};
  for (std::int64_t row = 0; row < kRows; row += rows) {
    for (std::int64_t column = 0; column < kColumns; column += columns) {
      const std::int64_t count = std::min(rows, kRows - row);
      const std::int64_t width = std::min(columns, kColumns - column);
      product.write(view<T>(a).row_block(row, count), view<T>(b).column_block(column, width),
                    out.block(row, count, column, width));
    }
  }
  CHECK(at::equal(whole, cut));
}

TEST_CASE("Gemm.BitsDoNotDependOnHowTheResultIsTiled") {
  at::manual_seed(2);
  check_cuts<float>(1, 7);
  check_cuts<float>(13, 32);
  check_cuts<double>(2, 5);
  check_cuts<double>(45, 33);
}

template <typename T>
std::vector<T> panel_product(const GemmKernels<T>& kernels, bool transposes) {
  constexpr long kRows = 21, kDepth = 70, kColumns = kPanelColumns<T> - 3;
  at::manual_seed(3);
  const at::Tensor a = at::randint(-8, 8, {kRows, kDepth}).to(kType<T>);
  const at::Tensor b = at::randint(-8, 8, {kColumns, kDepth}).to(kType<T>);
  std::vector<T> panel(static_cast<std::size_t>(kDepth * kPanelColumns<T>));
  kernels.transpose(b.const_data_ptr<T>(), kDepth, kColumns, kDepth, panel.data(),
                    kPanelColumns<T>);
  if (transposes) return panel;
  std::vector<T> c(static_cast<std::size_t>(kRows * kPanelColumns<T>));
  kernels.multiply({a.const_data_ptr<T>(), kDepth, 1, panel.data(), kPanelColumns<T>, kDepth},
                   kRows, c.data(), kPanelColumns<T>, false);
  return c;
}

// Operands are small integers, so that all sums are exact.
template <typename T>
void check_sets(const GemmKernels<T>& baseline, const GemmKernels<T>& avx2,
                const GemmKernels<T>& avx512) {
  for (const bool transposes : {false, true}) {
    const std::vector<T> expected = panel_product(baseline, transposes);
    if (instruction_set() >= InstructionSet::avx2)
      CHECK(panel_product(avx2, transposes) == expected);
    if (instruction_set() == InstructionSet::avx512) {
      CHECK(panel_product(avx512, transposes) == expected);
    }
  }
}

TEST_CASE("Gemm.EveryInstructionSetComputesTheSame") {
  check_sets(kFloatGemmBaseline, kFloatGemmAvx2, kFloatGemmAvx512);
  check_sets(kDoubleGemmBaseline, kDoubleGemmAvx2, kDoubleGemmAvx512);
}

}  // namespace
}  // namespace dtrain::kernels::gemm_test
