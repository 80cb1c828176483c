#include "dtrain/param/parameter_use.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

namespace dtrain::param {
namespace {

class ParameterUse : public torch::autograd::Function<ParameterUse> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& leaf,
                            std::int64_t id, std::int64_t sink) {
    ctx->saved_data["id"] = id;
    ctx->saved_data["sink"] = sink;
    // A separate tensor over the same memory, not a view, so that autograd does not check the leaf's
    // version.
    return leaf.variable_data();
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    if (grads[0].defined()) {
      auto* sink = reinterpret_cast<GradientSink*>(ctx->saved_data["sink"].toInt());
      sink->add_gradient(ParameterId(ctx->saved_data["id"].toInt()), grads[0]);
    }
    return {at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor use_parameter(const at::Tensor& leaf, ParameterId id, GradientSink& sink) {
  if (!at::GradMode::is_enabled()) return leaf;
  // A frozen parameter's values are saved for other gradients. They may be gathered again for the
  // backward pass, which autograd would treat as a modification of a saved tensor.
  if (!leaf.requires_grad()) return leaf.variable_data();
  return ParameterUse::apply(leaf, id.value(), reinterpret_cast<std::int64_t>(&sink));
}

void GradientTarget::accumulate(const at::Tensor& grad) const {
  if (is_first) {
    view.copy_(grad);  // not 0 + grad: a negative zero keeps its sign
  } else {
    view.add_(grad);
  }
}

void GradientMemory::add_gradient(ParameterId id, const at::Tensor& grad) {
  const at::NoGradGuard no_grad;
  gradient_of(id).accumulate(grad);
}

}  // namespace dtrain::param
