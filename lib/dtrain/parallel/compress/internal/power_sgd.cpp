#include "dtrain/parallel/compress/internal/power_sgd.h"

#include <ATen/ops/empty.h>

#include <string>
#include <utility>

#include "dtrain/parallel/compress/internal/thin_products.h"
#include "dtrain/param/parameter_spec.h"

namespace dtrain::parallel {
namespace {

at::Tensor factor_matrix(const param::ArenaAllocator& allocate, std::int64_t rows,
                         std::int64_t columns, at::ScalarType dtype) {
  return allocate(param::bytes_of(rows * columns, dtype)).view(dtype).view({rows, columns});
}

at::Tensor first_factor(const GradientPart& part, std::int64_t rank, const at::Tensor& like) {
  const param::ParameterSpec spec{.name = "factor of " + std::to_string(part.id.value()),
                                  .shape = {part.columns, rank},
                                  .export_view = {part.columns, rank},
                                  .export_order = {0, 1},
                                  .init_stddev = 1};
  const at::Tensor values = at::empty(spec.shape, like.options().device(at::kCPU));
  param::initialise(spec, /*seed=*/0, values);
  return values.to(like.device());
}

}  // namespace

PowerSgd::PowerSgd(const GradientPart& part, std::int64_t rank, comm::ProcessGroup& group,
                   at::ScalarType dtype, const param::ArenaAllocator& allocate)
    : group_(group),
      left_(factor_matrix(allocate, part.rows, rank, dtype)),
      right_(factor_matrix(allocate, part.columns, rank, dtype)),
      next_right_(factor_matrix(allocate, part.columns, rank, dtype)) {
  first_ = first_factor(part, rank, right_);
  right_.copy_(first_);
}

SchemeCosts PowerSgd::costs(const GradientPart& part, std::int64_t rank, std::int64_t num_ranks,
                            at::ScalarType dtype) {
  const std::int64_t left = param::bytes_of(part.rows * rank, dtype);
  const std::int64_t right = param::bytes_of(part.columns * rank, dtype);
  // For make_orthonormal: the columns in float64, and a transposed copy.
  const std::int64_t columns = 2 * param::bytes_of(part.rows * rank, at::kDouble);
  return {.buffers = left + 3 * right,
          .work = columns,
          .sent = bytes_in_ring(left + right, num_ranks),
          .calls = 2,
          .factor = right};
}

void PowerSgd::begin(const at::Tensor& values) {
  matrix_ = values.view({left_.size(0), right_.size(0)});
  multiply(matrix_, right_, left_);
  work_ = group_.all_reduce(left_);
}

void PowerSgd::advance() {
  work_.wait();
  make_orthonormal(left_);
  multiply(matrix_.t(), left_, next_right_);
  subtract_product(left_, next_right_.t(), matrix_);
  matrix_.reset();
  work_ = group_.all_reduce(next_right_);
}

void PowerSgd::finish(const at::Tensor& sum) {
  work_.wait();
  multiply_reproducibly(left_, next_right_.t(), sum.view({left_.size(0), right_.size(0)}));
}

void PowerSgd::commit() {
  std::swap(right_, next_right_);
  // A zero column would stay zero for ever.
  const at::Tensor is_zero = right_.eq(0).all(0);
  if (is_zero.any().item<bool>()) right_.copy_(first_.where(is_zero, right_));
}

}  // namespace dtrain::parallel
