#include "dtrain/parallel/tensor/row_split.h"

#include <torch/csrc/autograd/custom_function.h>

namespace dtrain::parallel {
namespace {

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

at::Tensor reduce(comm::ProcessGroup& group, const at::Tensor& partial, at::ScalarType result) {
  return ReduceFunction::apply(partial, reinterpret_cast<std::int64_t>(&group), result);
}

at::Tensor row_split(const ProductSplit& split, const at::Tensor& x, const at::Tensor& weight) {
  const at::Tensor products = partial_product(x, weight, split.shares_heads);  // (h, rows, D)
  const at::Tensor partial = products.sum(0, /*keepdim=*/false, travel_dtype(x.scalar_type()));
  return reduce(split.group, partial, x.scalar_type());
}

}  // namespace dtrain::parallel
