#include "dtrain/model/llama/internal/operations.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/where.h>
#include <torch/csrc/autograd/custom_function.h>

#include <numbers>

#include "dtrain/model/tensor_axis.h"
#include "dtrain/model/vector_math.h"

namespace dtrain::model::llama {
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
    const at::Tensor d_up = grads[0] * at::silu(gate);
    const at::Tensor d_gate = at::silu_backward(grads[0] * up, gate);
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

// Source: Llama 3's release; a linear blend between the two limits.
at::Tensor scaled_as_llama3(const at::Tensor& frequencies,
                            const config::llama::RopeSettings& rope) {
  const auto original = static_cast<double>(rope.original);
  const at::Tensor wavelength = 2 * std::numbers::pi / frequencies;
  const at::Tensor slow = frequencies / rope.factor;
  const at::Tensor blend =
      (original / wavelength - rope.low_frequency) / (rope.high_frequency - rope.low_frequency);
  const at::Tensor between = (1 - blend) * slow + blend * frequencies;
  const at::Tensor scaled = at::where(wavelength > original / rope.low_frequency, slow, between);
  return at::where(wavelength < original / rope.high_frequency, frequencies, scaled);
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  return RmsNorm::apply(x, weight, epsilon);
}

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) { return SwiGlu::apply(gate, up); }

at::Tensor rotary_frequencies(const config::llama::RopeSettings& rope, std::int64_t head_dim) {
  using Scaling = config::llama::RopeScaling;
  const auto size = static_cast<double>(head_dim);
  const at::Tensor exponent = at::arange(0, head_dim, 2, at::kFloat) / size;
  const at::Tensor frequencies = at::pow(rope.theta, exponent).reciprocal();
  switch (rope.scaling) {
    case Scaling::none:
      return frequencies;
    case Scaling::linear:
      return frequencies / rope.factor;
    case Scaling::llama3:
      return scaled_as_llama3(frequencies, rope);
  }
  return frequencies;
}

RotaryTable rotary_table(const at::Tensor& frequencies, std::int64_t begin, std::int64_t end,
                         const at::TensorOptions& options) {
  warm_up_vector_math();
  const at::Tensor angles = at::outer(at::arange(begin, end, at::kFloat), frequencies);
  return {.cosine = angles.cos().to(options), .sine = angles.sin().to(options)};
}

at::Tensor rotate_halves(const at::Tensor& x, const RotaryTable& table) {
  return RotateHalves::apply(x, table.cosine, table.sine);
}

const RotaryTable& RotaryTables::table(std::int64_t length, const at::TensorOptions& options) {
  const at::Tensor& cosine = table_.cosine;
  const bool fits = cosine.defined() && cosine.size(0) == length &&
                    cosine.dtype() == options.dtype() && cosine.device() == options.device();
  if (!fits) table_ = rotary_table(rotary_frequencies(rope_, head_dim_), 0, length, options);
  return table_;
}

}  // namespace dtrain::model::llama
