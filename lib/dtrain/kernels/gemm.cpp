#include "dtrain/kernels/gemm.h"

#include <ATen/Version.h>

#include <algorithm>
#include <string>
#include <type_traits>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/kernels/tasks.h"

namespace dtrain::kernels {
namespace {

// A panel of this depth stays in the L1 cache while it is multiplied by successive rows.
constexpr std::int64_t kDepthBlock = 256;
constexpr std::int64_t kMarginRows = 32;

template <typename T>
const GemmKernels<T>& kernels_for(InstructionSet set) {
  if constexpr (std::is_same_v<T, float>) {
    return choose(kFloatGemmBaseline, kFloatGemmAvx2, kFloatGemmAvx512, set);
  } else {
    return choose(kDoubleGemmBaseline, kDoubleGemmAvx2, kDoubleGemmAvx512, set);
  }
}

template <typename T>
bool is_panel(const Matrix<T>& b) {
  return b.column_stride == 1 && b.columns == kPanelColumns<T>;
}

}  // namespace

InstructionSet instruction_set() {
  static const InstructionSet set = [] {
    const std::string name = at::get_cpu_capability();
    if (name == "AVX512") return InstructionSet::avx512;
    return name == "AVX2" ? InstructionSet::avx2 : InstructionSet::baseline;
  }();
  return set;
}

template <typename T>
Gemm<T>::Gemm(InstructionSet set) : kernels_(kernels_for<T>(set)) {}

template <typename T>
void Gemm<T>::reserve(const OperandSize& /*largest*/) {
  packed_.require(kDepthBlock * kPanelColumns<T>);
  margin_.require(kMarginRows * kPanelColumns<T>);
}

template <typename T>
std::int64_t Gemm<T>::bytes(const OperandSize& /*largest*/) {
  return (kDepthBlock + kMarginRows) * kPanelColumns<T> * static_cast<std::int64_t>(sizeof(T));
}

template <typename T>
const T* Gemm<T>::pack(const Matrix<const T>& b) {
  if (b.row_stride == 1) {
    kernels_.transpose(b.data, b.column_stride, b.columns, b.rows, packed_.data(),
                       kPanelColumns<T>);
  } else {
    for (std::int64_t k = 0; k < b.rows; ++k) {
      std::copy_n(b.data + k * b.row_stride, b.columns, packed_.data() + k * kPanelColumns<T>);
    }
  }
  // Zeros the padding of a narrow panel: it is multiplied too, and subnormal values would be slow.
  for (std::int64_t k = 0; k < b.rows && b.columns < kPanelColumns<T>; ++k) {
    T* row = packed_.data() + k * kPanelColumns<T>;
    std::fill(row + b.columns, row + kPanelColumns<T>, T{0});
  }
  return packed_.data();
}

template <typename T>
void Gemm<T>::multiply(const Matrix<const T>& a, const Matrix<const T>& b, const Matrix<T>& c,
                       bool adds) {
  DTRAIN_CHECK(a.columns == b.rows && a.rows == c.rows && b.columns == c.columns);
  DTRAIN_CHECK(c.column_stride == 1 && (b.column_stride == 1 || b.row_stride == 1));
  reserve({});
  for (std::int64_t k = 0; k < b.rows; k += kDepthBlock) {
    const std::int64_t depth = std::min(kDepthBlock, b.rows - k);
    for (std::int64_t column = 0; column < c.columns; column += kPanelColumns<T>) {
      const std::int64_t columns = std::min<std::int64_t>(kPanelColumns<T>, c.columns - column);
      const Matrix<const T> panel = b.block(k, depth, column, columns);
      PanelOperands<T> operands{.a = a.data + k * a.column_stride,
                                .a_row = a.row_stride,
                                .a_column = a.column_stride,
                                .b = is_panel(panel) ? panel.data : pack(panel),
                                .b_row = is_panel(panel) ? b.row_stride : kPanelColumns<T>,
                                .depth = depth};
      const Matrix<T> out = c.column_block(column, columns);
      const bool sums = adds || k > 0;
      if (columns == kPanelColumns<T>) {
        kernels_.multiply(operands, out.rows, out.data, out.row_stride, sums);
      } else {
        multiply_margin(operands, out, sums);
      }
    }
  }
}

template <typename T>
void Gemm<T>::multiply_margin(PanelOperands<T> operands, const Matrix<T>& c, bool adds) {
  for (std::int64_t row = 0; row < c.rows; row += kMarginRows) {
    const std::int64_t rows = std::min(kMarginRows, c.rows - row);
    kernels_.multiply(operands, rows, margin_.data(), kPanelColumns<T>, false);
    for (std::int64_t i = 0; i < rows; ++i) {
      const T* sums = margin_.data() + i * kPanelColumns<T>;
      T* out = c.data + (row + i) * c.row_stride;
      for (std::int64_t j = 0; j < c.columns; ++j) out[j] = adds ? out[j] + sums[j] : sums[j];
    }
    operands.a += rows * operands.a_row;
  }
}

template class Gemm<float>;
template class Gemm<double>;

namespace {

constexpr std::int64_t kSide = 256;  // rows and columns
constexpr auto kElements = static_cast<std::size_t>(kSide * kSide);

// The operands of one thread, multiplied repeatedly into the same memory.
template <typename T>
struct RateWork {
  Gemm<T> product;
  std::vector<T> a = std::vector<T>(kElements, T(0.5F));
  std::vector<T> b = std::vector<T>(kElements, T(0.5F));
  std::vector<typename SumOf<T>::Type> c = std::vector<typename SumOf<T>::Type>(kElements);
};

template <typename T>
double measured_rate(double seconds) {
  constexpr std::int64_t kProducts = 4;
  const std::int64_t workers = num_workers();
  std::vector<RateWork<T>> work(static_cast<std::size_t>(workers));
  const double flops = static_cast<double>(workers * kProducts * 2 * kSide * kSide * kSide);
  double best = 0;
  for (const auto start = base::Clock::now(); base::seconds_since(start) < seconds;) {
    const auto begin = base::Clock::now();
    run_tasks(workers, [&](std::int64_t task, std::int64_t) {
      RateWork<T>& own = work[static_cast<std::size_t>(task)];
      for (std::int64_t i = 0; i < kProducts; ++i) {
        own.product.write({own.a.data(), kSide, kSide}, {own.b.data(), kSide, kSide},
                          {own.c.data(), kSide, kSide});
      }
    });
    best = std::max(best, flops / base::seconds_since(begin));
  }
  return best;
}

}  // namespace

double gemm_rate(c10::ScalarType type, double seconds) {
  switch (type) {
    case c10::ScalarType::Float:
      return measured_rate<float>(seconds);
    case c10::ScalarType::Double:
      return measured_rate<double>(seconds);
    case c10::ScalarType::BFloat16:
      return measured_rate<c10::BFloat16>(seconds);
    default:
      return 0;
  }
}

}  // namespace dtrain::kernels
