#include "dtrain/model/bdh/fused_head.h"

#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "dtrain/kernels/tasks.h"
#include "dtrain/model/bdh/fused_type.h"
#include "dtrain/model/bdh/gradient_sum.h"

namespace dtrain::model::bdh {
namespace {

using kernels::Matrix;

template <typename T>
Matrix<const T> factor(const at::Tensor& m) {
  return {m.const_data_ptr<T>(), m.size(0), m.size(1), m.stride(0), m.stride(1)};
}

// c = or += a b, its rows cut into tasks. All are (rows, columns).
template <typename S>
void multiply(const at::Tensor& a, const at::Tensor& b, const at::Tensor& c, bool adds) {
  using W = typename kernels::SumOf<S>::Type;
  constexpr std::int64_t kRows = 32;
  const Matrix<W> out{c.mutable_data_ptr<W>(), c.size(0), c.size(1)};
  std::vector<kernels::Product<S>> products(static_cast<std::size_t>(kernels::num_workers()));
  kernels::run_tasks((out.rows + kRows - 1) / kRows, [&](std::int64_t task, std::int64_t worker) {
    const std::int64_t row = task * kRows;
    const std::int64_t rows = std::min(kRows, out.rows - row);
    products[static_cast<std::size_t>(worker)].multiply(
        factor<S>(a).row_block(row, rows), factor<S>(b), out.row_block(row, rows), adds);
  });
}

}  // namespace

at::Tensor FusedHead::forward(const at::Tensor& x, const BlockContext& context) {
  std::vector<at::Tensor> saved;
  return forward(x, context, saved);
}

at::Tensor FusedHead::forward(const at::Tensor& x, const BlockContext& context,
                              std::vector<at::Tensor>& saved) {
  part_.check(context.tensor_axis);
  const at::Tensor weight = context.use(ids_[0]);               // (D, V)
  const at::Tensor rows = x.reshape({-1, part_.whole.width});   // (B*T, D)
  const at::Tensor targets = context.targets.reshape({-1, 1});  // (B*T, 1)
  return for_type(x, [&]<typename S>(S) {
    const at::Tensor logits =
        at::empty({rows.size(0), part_.vocab}, x.options().dtype(kWideType<S>));  // (B*T, V)
    multiply<S>(rows, weight, logits, /*adds=*/false);
    context.report("logits", logits.view({x.size(0), x.size(1), part_.vocab}));
    // ATen's kernel computes row by row, so that threads do not change its bits.
    saved = {at::_log_softmax(logits, 1, /*half_to_float=*/false)};
    return saved[0].gather(1, targets).neg_().view({x.size(0), x.size(1)});
  });
}

at::Tensor FusedHead::backward(const at::Tensor& x, const at::Tensor& gradient,
                               std::span<const at::Tensor> saved, const BlockContext& context,
                               const GradientOf& gradient_of) {
  const at::Tensor weight = context.use(ids_[0]);  // (D, V)
  const at::Tensor rows = x.reshape({-1, part_.whole.width});
  const at::Tensor& log_shares = saved[0];  // (B*T, V)
  return for_type(x, [&]<typename S>(S) {
    at::Tensor d_logits = at::zeros_like(log_shares);
    d_logits.scatter_(1, context.targets.reshape({-1, 1}), gradient.reshape({-1, 1}).neg());
    d_logits = at::_log_softmax_backward_data(d_logits, log_shares, 1, log_shares.scalar_type());
    d_logits = d_logits.to(x.scalar_type());
    GradientSum sum(gradient_of(ids_[0]), kWideType<S>);
    if (const FusedGradient place = sum.get(); place.sum.defined()) {
      multiply<S>(rows.t(), d_logits, place.sum, !place.is_first);
    }
    sum.finish();
    const at::Tensor d_rows = at::empty(rows.sizes(), log_shares.options());
    multiply<S>(d_logits, weight.t(), d_rows, /*adds=*/false);
    return d_rows.view(x.sizes()).to(x.scalar_type());
  });
}

BlockMemory FusedHead::memory(const BatchShape& shape) const {
  const auto low = static_cast<std::int64_t>(c10::elementSize(shape.dtype));
  const std::int64_t wide = std::max<std::int64_t>(4, low);
  const std::int64_t logits = shape.rows() * part_.vocab * wide;
  const std::int64_t row = shape.rows() * part_.whole.width;
  BlockMemory memory{.output = shape.rows() * wide, .saved = logits};
  memory.forward = 2 * logits;
  memory.forward_without_graph = memory.forward;
  // The gradients of both sides of the log-softmax; or that of the logits and of x, both rounded.
  const std::int64_t rounded = low == wide ? 0 : low * (shape.rows() * part_.vocab + row);
  const std::int64_t at_product = (low == wide ? logits : 0) + row * wide + rounded;
  memory.backward = logits + std::max(2 * logits, at_product);
  return memory;
}

}  // namespace dtrain::model::bdh
