#include "dtrain/kernels/product.h"

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

// A panel of this depth stays in the first-level cache while rows pass by it.
constexpr std::int64_t kDepthBlock = 256;
constexpr std::int64_t kMarginRows = 32;

template <typename T>
const ProductKernels<T>& kernels_of(InstructionSet set) {
  if constexpr (std::is_same_v<T, float>) {
    return choose(kFloatProductBaseline, kFloatProductAvx2, kFloatProductAvx512, set);
  } else {
    return choose(kDoubleProductBaseline, kDoubleProductAvx2, kDoubleProductAvx512, set);
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
Product<T>::Product(InstructionSet set) : kernels_(kernels_of<T>(set)) {}

template <typename T>
void Product<T>::reserve(const FactorSize& /*most*/) {
  packed_.require(kDepthBlock * kPanelColumns<T>);
  margin_.require(kMarginRows * kPanelColumns<T>);
}

template <typename T>
std::int64_t Product<T>::bytes(const FactorSize& /*most*/) {
  return (kDepthBlock + kMarginRows) * kPanelColumns<T> * static_cast<std::int64_t>(sizeof(T));
}

template <typename T>
const T* Product<T>::pack(const Matrix<const T>& b) {
  if (b.row_stride == 1) {
    kernels_.transpose(b.data, b.column_stride, b.columns, b.rows, packed_.data(),
                       kPanelColumns<T>);
  } else {
    for (std::int64_t k = 0; k < b.rows; ++k) {
      std::copy_n(b.data + k * b.row_stride, b.columns, packed_.data() + k * kPanelColumns<T>);
    }
  }
  // What lies beside a narrow panel is multiplied too, and must not be slow.
  for (std::int64_t k = 0; k < b.rows && b.columns < kPanelColumns<T>; ++k) {
    T* row = packed_.data() + k * kPanelColumns<T>;
    std::fill(row + b.columns, row + kPanelColumns<T>, T{0});
  }
  return packed_.data();
}

template <typename T>
void Product<T>::multiply(const Matrix<const T>& a, const Matrix<const T>& b, const Matrix<T>& c,
                          bool adds) {
  DTRAIN_CHECK(a.columns == b.rows && a.rows == c.rows && b.columns == c.columns);
  DTRAIN_CHECK(c.column_stride == 1 && (b.column_stride == 1 || b.row_stride == 1));
  reserve({});
  for (std::int64_t k = 0; k < b.rows; k += kDepthBlock) {
    const std::int64_t depth = std::min(kDepthBlock, b.rows - k);
    for (std::int64_t column = 0; column < c.columns; column += kPanelColumns<T>) {
      const std::int64_t columns = std::min<std::int64_t>(kPanelColumns<T>, c.columns - column);
      const Matrix<const T> panel = b.block(k, depth, column, columns);
      PanelFactors<T> factors{.a = a.data + k * a.column_stride,
                              .a_row = a.row_stride,
                              .a_column = a.column_stride,
                              .b = is_panel(panel) ? panel.data : pack(panel),
                              .b_row = is_panel(panel) ? b.row_stride : kPanelColumns<T>,
                              .depth = depth};
      const Matrix<T> out = c.column_block(column, columns);
      const bool sums = adds || k > 0;
      if (columns == kPanelColumns<T>) {
        kernels_.multiply(factors, out.rows, out.data, out.row_stride, sums);
      } else {
        multiply_margin(factors, out, sums);
      }
    }
  }
}

template <typename T>
void Product<T>::multiply_margin(PanelFactors<T> factors, const Matrix<T>& c, bool adds) {
  for (std::int64_t row = 0; row < c.rows; row += kMarginRows) {
    const std::int64_t rows = std::min(kMarginRows, c.rows - row);
    kernels_.multiply(factors, rows, margin_.data(), kPanelColumns<T>, false);
    for (std::int64_t i = 0; i < rows; ++i) {
      const T* sums = margin_.data() + i * kPanelColumns<T>;
      T* out = c.data + (row + i) * c.row_stride;
      for (std::int64_t j = 0; j < c.columns; ++j) out[j] = adds ? out[j] + sums[j] : sums[j];
    }
    factors.a += rows * factors.a_row;
  }
}

template class Product<float>;
template class Product<double>;

namespace {

constexpr std::int64_t kSide = 256;  // rows and columns
constexpr auto kElements = static_cast<std::size_t>(kSide * kSide);

// What one thread multiplies, over and over into the same memory.
template <typename T>
struct RateWork {
  Product<T> product;
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

double product_rate(c10::ScalarType type, double seconds) {
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
