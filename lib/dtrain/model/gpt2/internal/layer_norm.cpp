#include "dtrain/model/gpt2/internal/layer_norm.h"

#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <tuple>
#include <utility>

#include "dtrain/model/tensor_axis.h"

namespace dtrain::model::gpt2 {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::optional<at::Tensor> widened_or_none(const std::optional<at::Tensor>& x) {
  return x ? std::optional(widened(*x)) : std::nullopt;
}

class LayerNorm : public torch::autograd::Function<LayerNorm> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, double epsilon) {
    const auto [normed, mean, scale] = at::native_layer_norm(
        widened(x), weight.sizes(), widened(weight), widened_or_none(bias), epsilon);
    variable_list saved{x, weight, mean, scale};
    if (bias) saved.push_back(*bias);
    ctx->save_for_backward(std::move(saved));
    return normed.to(x.scalar_type());
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const bool has_bias = saved.size() == kSavedWithBias;
    const auto bias = has_bias ? std::optional(widened(saved.back())) : std::nullopt;
    const std::array<bool, 3> needed{ctx->needs_input_grad(0), ctx->needs_input_grad(1),
                                     has_bias && ctx->needs_input_grad(2)};
    const auto gradients =
        at::native_layer_norm_backward(widened(grads[0]), widened(x), weight.sizes(), saved[2],
                                       saved[3], widened(weight), bias, needed);
    const auto narrowed = [&](const at::Tensor& gradient) {
      return gradient.defined() ? gradient.to(x.scalar_type()) : gradient;
    };
    return {narrowed(std::get<0>(gradients)), narrowed(std::get<1>(gradients)),
            narrowed(std::get<2>(gradients)), at::Tensor()};
  }

 private:
  static constexpr std::size_t kSavedWithBias = 5;
};

}  // namespace

at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight,
                      const std::optional<at::Tensor>& bias, double epsilon) {
  return LayerNorm::apply(x, weight, bias, epsilon);
}

}  // namespace dtrain::model::gpt2
