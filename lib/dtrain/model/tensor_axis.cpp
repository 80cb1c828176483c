#include "dtrain/model/tensor_axis.h"

#include <ATen/ops/bmm.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>

#include "dtrain/base/error.h"

namespace dtrain::model {

ColumnSplit TensorAxis::column_split(const at::Tensor& x, const at::Tensor& weight) {
  const std::int64_t width = x.size(-1);
  const std::int64_t rows = x.numel() / width;
  const at::Tensor shared = x.reshape({1, rows, width}).expand({weight.size(0), rows, width});
  return {.product = at::bmm(shared, weight.mT()), .x = x};
}

at::Tensor TensorAxis::row_split(const at::Tensor& x, const at::Tensor& weight) {
  return at::bmm(x, weight).sum(0);  // ATen accumulates 16-bit dtypes in float32
}

at::Tensor TensorAxis::column_split_within(std::size_t, const at::Tensor& x,
                                           const at::Tensor& weight) {
  return at::bmm(x, weight.mT());
}

at::Tensor TensorAxis::reduce_within(std::size_t, const at::Tensor& partial) { return partial; }

at::Tensor TensorAxis::replicated(const at::Tensor& x) { return x; }

at::Tensor TensorAxis::reduce(const at::Tensor& partial) { return partial; }

at::Tensor TensorAxis::embedding(const at::Tensor& weight, const at::Tensor& ids,
                                 std::int64_t first) {
  DTRAIN_CHECK(first == 0);
  return at::embedding(widened(weight), ids);
}

at::Tensor TensorAxis::cross_entropy(const at::Tensor& logits, const at::Tensor& targets,
                                     std::int64_t first) {
  DTRAIN_CHECK(first == 0);
  return at::cross_entropy_loss(logits, targets, {}, at::Reduction::None);
}

}  // namespace dtrain::model
