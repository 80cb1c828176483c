#include "dtrain/parallel/compress/internal/thin_products.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/mm.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "dtrain/kernels/gemm.h"
#include "dtrain/kernels/tasks.h"

namespace dtrain::parallel {
namespace {

constexpr std::int64_t kRowsOfTask = 256;
// Relative length below which a projected column is rounding error.
constexpr double kRounding = 1e-6;

template <typename T>
kernels::Matrix<T> matrix_of(const at::Tensor& tensor) {
  return {tensor.mutable_data_ptr<std::remove_const_t<T>>(), tensor.size(0), tensor.size(1),
          tensor.stride(0), tensor.stride(1)};
}

template <typename T>
void multiply_by_rows(const at::Tensor& a, const at::Tensor& b, const at::Tensor& product,
                      bool adds, kernels::InstructionSet set = kernels::instruction_set()) {
  const auto left = matrix_of<const T>(a);
  const auto right = matrix_of<const T>(b);
  const auto result = matrix_of<T>(product);
  std::vector<kernels::Gemm<T>> products(static_cast<std::size_t>(kernels::num_workers()),
                                         kernels::Gemm<T>(set));
  const std::int64_t tasks = (result.rows + kRowsOfTask - 1) / kRowsOfTask;
  kernels::run_tasks(tasks, [&](std::int64_t task, std::int64_t worker) {
    const std::int64_t first = task * kRowsOfTask;
    const std::int64_t rows = std::min(kRowsOfTask, result.rows - first);
    products[static_cast<std::size_t>(worker)].multiply(left.row_block(first, rows), right,
                                                        result.row_block(first, rows), adds);
  });
}

}  // namespace

void multiply(const at::Tensor& a, const at::Tensor& b, const at::Tensor& product) {
  if (!a.is_cpu()) {
    product.copy_(at::mm(a, b));
    return;
  }
  AT_DISPATCH_FLOATING_TYPES(a.scalar_type(), "multiply",
                             [&] { multiply_by_rows<scalar_t>(a, b, product, /*adds=*/false); });
}

void multiply_reproducibly(const at::Tensor& a, const at::Tensor& b, const at::Tensor& product) {
  if (!a.is_cpu()) return multiply(a, b, product);
  AT_DISPATCH_FLOATING_TYPES(a.scalar_type(), "multiply_reproducibly", [&] {
    multiply_by_rows<scalar_t>(a, b, product, /*adds=*/false, kernels::InstructionSet::baseline);
  });
}

void subtract_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& from) {
  if (!a.is_cpu()) {
    from.addmm_(a, b, 1, -1);
    return;
  }
  AT_DISPATCH_FLOATING_TYPES(a.scalar_type(), "subtract_product",
                             [&] { multiply_by_rows<scalar_t>(a.neg(), b, from, /*adds=*/true); });
}

void make_orthonormal(const at::Tensor& matrix) {
  const at::Tensor columns = matrix.to(at::kCPU, at::kDouble).t().contiguous();  // (k, n)
  const std::int64_t count = columns.size(0);
  const std::int64_t length = columns.size(1);
  double* const values = columns.mutable_data_ptr<double>();
  const auto column = [&](std::int64_t index) { return values + index * length; };
  const auto product = [&](const double* a, const double* b) {
    double sum = 0;
    for (std::int64_t i = 0; i < length; ++i) sum += a[i] * b[i];
    return sum;
  };
  for (std::int64_t c = 0; c < count; ++c) {
    double* const own = column(c);
    const double before = std::sqrt(product(own, own));
    for (std::int64_t other = 0; other < c; ++other) {
      const double share = product(column(other), own);
      for (std::int64_t i = 0; i < length; ++i) own[i] -= share * column(other)[i];
    }
    const double norm = std::sqrt(product(own, own));
    const double factor = norm <= kRounding * before ? 0 : 1 / norm;  // NaN propagates
    for (std::int64_t i = 0; i < length; ++i) own[i] *= factor;
  }
  matrix.copy_(columns.t());
}

}  // namespace dtrain::parallel
