#include "dtrain/device/operator.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <numeric>

namespace dtrain::device {
namespace {

at::Tensor sum_on_cpu(const at::Tensor& values) {
  const at::Tensor rows = values.to(at::kDouble).contiguous();
  const std::int64_t length = rows.size(-1);
  at::Tensor sums =
      at::empty(rows.sizes().slice(0, static_cast<std::size_t>(rows.dim() - 1)), rows.options());
  const auto* row = rows.const_data_ptr<double>();
  auto* sum = sums.mutable_data_ptr<double>();
  for (std::int64_t index = 0; index < sums.numel(); ++index, row += length) {
    sum[index] = std::accumulate(row, row + length, 0.0);
  }
  return sums;
}

// Shape inference only.
at::Tensor sum_of_meta(const at::Tensor& values) {
  return at::empty(values.sizes().slice(0, static_cast<std::size_t>(values.dim() - 1)),
                   values.options().dtype(at::kDouble));
}

TORCH_LIBRARY_FRAGMENT(dtrain, operators) { operators.def("ordered_sum(Tensor values) -> Tensor"); }
TORCH_LIBRARY_IMPL(dtrain, CPU, kernels) { kernels.impl("ordered_sum", sum_on_cpu); }
TORCH_LIBRARY_IMPL(dtrain, Meta, kernels) { kernels.impl("ordered_sum", sum_of_meta); }

}  // namespace

at::Tensor ordered_sum(const at::Tensor& values) {
  static const Operator<at::Tensor(const at::Tensor&)> kOrderedSum("dtrain::ordered_sum");
  return kOrderedSum(values);
}

}  // namespace dtrain::device
