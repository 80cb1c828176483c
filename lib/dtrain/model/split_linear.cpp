#include "dtrain/model/split_linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

namespace dtrain::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// (..., N) -> (rows, N)
at::Tensor as_matrix(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

// A product in `dtype` of an x that is wider, whose gradient is computed in x's dtype.
class NarrowLinear : public torch::autograd::Function<NarrowLinear> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            at::ScalarType dtype) {
    ctx->save_for_backward({x, weight});
    return at::linear(x.to(dtype), weight.to(dtype));
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor dy = as_matrix(grads[0]);
    at::Tensor d_x;
    if (ctx->needs_input_grad(0)) {
      d_x = at::mm(dy.to(x.scalar_type()), weight.to(x.scalar_type())).view(x.sizes());
    }
    at::Tensor d_weight;
    if (ctx->needs_input_grad(1)) {
      const at::ScalarType dtype = weight.scalar_type();
      d_weight = at::mm(dy.to(dtype).t(), as_matrix(x).to(dtype));
    }
    return {d_x, d_weight, at::Tensor()};
  }
};

// The float32 product of float16 factors. Its gradient has values of float16, to which the sum over
// ranks was rounded.
class WideLinear : public torch::autograd::Function<WideLinear> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight) {
    ctx->save_for_backward({x, weight});
    return at::linear(widened(x), widened(weight));
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor dy = as_matrix(grads[0].to(x.scalar_type()));
    at::Tensor d_weight;
    if (ctx->needs_input_grad(1)) d_weight = at::mm(dy.t(), as_matrix(x));
    return {at::mm(dy, weight).view(x.sizes()), d_weight};
  }
};

}  // namespace

at::Tensor column_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                         at::ScalarType dtype) {
  if (x.scalar_type() == dtype) return at::linear(x, weight, bias);
  const at::Tensor product = NarrowLinear::apply(x, weight, dtype);
  return bias.defined() ? (product + bias).to(dtype) : product;
}

at::Tensor row_linear(TensorAxis& axis, const at::Tensor& x, const at::Tensor& weight) {
  if (axis.size() == 1 || x.scalar_type() != at::kHalf) return axis.reduce(at::linear(x, weight));
  return axis.reduce(WideLinear::apply(x, weight)).to(x.scalar_type());
}

}  // namespace dtrain::model
