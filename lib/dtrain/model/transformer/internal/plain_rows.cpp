#include "dtrain/model/transformer/internal/plain_rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <torch/csrc/autograd/custom_function.h>

#include "dtrain/model/tensor_axis.h"

namespace dtrain::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class RmsNorm : public torch::autograd::Function<RmsNorm> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            double epsilon) {
    const at::Tensor wide = widened(x);
    const at::Tensor scale = wide.square().mean(-1, /*keepdim=*/true).add_(epsilon).rsqrt_();
    ctx->save_for_backward({x, weight, scale});
    return (wide * scale).to(x.scalar_type()).mul_(weight);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor& scale = saved[2];  // (..., 1)
    const at::Tensor dy = widened(grads[0]);
    const at::Tensor normed = widened(x) * scale;
    at::Tensor d_weight;
    if (ctx->needs_input_grad(1)) {
      const at::Tensor rounded = normed.to(x.scalar_type());
      d_weight = (dy * rounded).reshape({-1, weight.size(0)}).sum(0).to(weight.scalar_type());
    }
    const at::Tensor d_normed = dy * weight;
    const at::Tensor along = (d_normed * normed).mean(-1, /*keepdim=*/true);
    const at::Tensor d_x = d_normed.sub(normed.mul_(along)).mul_(scale);
    return {d_x.to(x.scalar_type()), d_weight, at::Tensor()};
  }
};

class SwiGlu : public torch::autograd::Function<SwiGlu> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate, const at::Tensor& up) {
    ctx->save_for_backward({gate, up});
    return at::silu(gate).mul_(up);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& gate = saved[0];
    const at::Tensor& up = saved[1];
    const at::Tensor d_up = at::silu(gate).mul_(grads[0]);
    at::Tensor d_gate = grads[0] * up;
    at::silu_backward_out(d_gate, d_gate, gate);
    return {d_gate, d_up};
  }
};

// Returns x rotated by the table's angles, or by their negatives.
at::Tensor rotated(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine,
                   bool is_negative) {
  const auto halves = x.chunk(2, -1);
  const at::Tensor angle = is_negative ? sine.neg() : sine;
  at::Tensor result = at::empty_like(x, at::MemoryFormat::Contiguous);
  auto parts = result.chunk(2, -1);
  at::mul_out(parts[0], halves[0], cosine).sub_(halves[1] * angle);
  at::mul_out(parts[1], halves[1], cosine).add_(halves[0] * angle);
  return result;
}

class RotateHalves : public torch::autograd::Function<RotateHalves> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& cosine,
                            const at::Tensor& sine) {
    ctx->save_for_backward({cosine, sine});
    return rotated(x, cosine, sine, /*is_negative=*/false);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    return {rotated(grads[0], saved[0], saved[1], /*is_negative=*/true), at::Tensor(),
            at::Tensor()};
  }
};

}  // namespace

const RowOperations kPlainRows{
    .is_fused = false,
    .rms_norm = [](const at::Tensor& x, const at::Tensor& weight, double epsilon) -> at::Tensor {
      return RmsNorm::apply(x, weight, epsilon);
    },
    .rotate_halves = [](const at::Tensor& x, const RotaryTable& table) -> at::Tensor {
      return RotateHalves::apply(x, table.cosine, table.sine);
    },
    .swiglu = [](const at::Tensor& gate, const at::Tensor& up) -> at::Tensor {
      return SwiGlu::apply(gate, up);
    },
    .gelu = [](const at::Tensor& x) -> at::Tensor { return at::gelu(x, "tanh"); },
    .cross_entropy = [](const at::Tensor& logits, const at::Tensor& targets) -> at::Tensor {
      return at::cross_entropy_loss(widened(logits), targets, {}, at::Reduction::None);
    }};

}  // namespace dtrain::model
