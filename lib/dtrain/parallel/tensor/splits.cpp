#include "dtrain/parallel/tensor/splits.h"

#include <ATen/ops/bmm.h>
#include <torch/csrc/autograd/custom_function.h>

#include "dtrain/base/error.h"

namespace dtrain::parallel {
namespace {

class ColumnSplitFunction : public torch::autograd::Function<ColumnSplitFunction> {
 public:
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* ctx,
                                                const at::Tensor& x, const at::Tensor& weight,
                                                std::int64_t group, bool shares_heads) {
    ctx->save_for_backward({x, weight});
    ctx->saved_data["group"] = group;
    ctx->saved_data["shares_heads"] = shares_heads;
    ctx->set_materialize_grads(false);
    const at::Tensor product =
        at::bmm(x.expand({weight.size(0), x.size(1), x.size(2)}), weight.mT());  // (h, rows, N)
    const bool is_half = x.scalar_type() == at::kHalf;
    return {product, is_half ? x.to(at::kFloat) : x.variable_data()};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor& dy = grads[0];  // (h, rows, N)
    DTRAIN_CHECK(dy.defined(), "a split product has no gradient");
    auto* group = reinterpret_cast<comm::ProcessGroup*>(ctx->saved_data["group"].toInt());

    at::Tensor dx = partial_product(dy, weight, ctx->saved_data["shares_heads"].toBool());
    if (x.size(0) == 1) dx = dx.sum(0, /*keepdim=*/true, wide_dtype(x));
    if (grads[1].defined()) dx = dx + grads[1];
    PendingSum sum(*group, dx, x.scalar_type());  // (1 or h, rows, D)
    at::Tensor dw;                                // (h, N, D), while the sum travels
    if (ctx->needs_input_grad(1)) {
      dw = at::bmm(dy.mT(), x.expand({weight.size(0), x.size(1), x.size(2)}));
    }
    return {sum.wait(), dw, at::Tensor(), at::Tensor()};
  }

 private:
  static at::ScalarType wide_dtype(const at::Tensor& x) {
    return at::isReducedFloatingType(x.scalar_type()) ? at::kFloat : x.scalar_type();
  }
};

class ReduceFunction : public torch::autograd::Function<ReduceFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& partial,
                            std::int64_t group, at::ScalarType result) {
    ctx->saved_data["dtype"] = partial.scalar_type();
    return PendingSum(*reinterpret_cast<comm::ProcessGroup*>(group), partial, result).wait();
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    return {grads[0].to(ctx->saved_data["dtype"].toScalarType()), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

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

model::ColumnSplit column_split(const ProductSplit& split, const at::Tensor& x,
                                const at::Tensor& weight) {
  const auto outputs = ColumnSplitFunction::apply(
      x, weight, reinterpret_cast<std::int64_t>(&split.group), split.shares_heads);
  return {.product = outputs[0], .x = outputs[1]};
}

at::Tensor reduce(comm::ProcessGroup& group, const at::Tensor& partial, at::ScalarType result) {
  return ReduceFunction::apply(partial, reinterpret_cast<std::int64_t>(&group), result);
}

at::Tensor row_split(const ProductSplit& split, const at::Tensor& x, const at::Tensor& weight) {
  const at::Tensor products = partial_product(x, weight, split.shares_heads);  // (h, rows, D)
  const at::Tensor partial = products.sum(0, /*keepdim=*/false, travel_dtype(x.scalar_type()));
  return reduce(split.group, partial, x.scalar_type());
}

}  // namespace dtrain::parallel
