#include "dtrain/parallel/tensor/sum_over.h"

#include <ATen/ops/bmm.h>

#include "dtrain/model/tensor_axis.h"

namespace dtrain::parallel {

at::ScalarType travel_dtype(at::ScalarType dtype) {
  return dtype == at::kHalf ? at::kFloat : dtype;
}

PendingSum::PendingSum(comm::ProcessGroup& group, const at::Tensor& partial, at::ScalarType result)
    : values_(partial.to(travel_dtype(result), /*non_blocking=*/false, /*copy=*/true,
                         at::MemoryFormat::Contiguous)),
      result_(result),
      work_(group.all_reduce(values_)) {}

at::Tensor PendingSum::wait() {
  work_.wait();
  return values_.to(result_);
}

at::Tensor partial_product(const at::Tensor& a, const at::Tensor& b, bool shares_heads) {
  if (!shares_heads || a.scalar_type() != at::kHalf) return at::bmm(a, b);
  return at::bmm(model::widened(a), model::widened(b));
}

}  // namespace dtrain::parallel
