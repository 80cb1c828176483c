#include "dtrain/model/bdh/bdh_blocks.h"

#include <ATen/ops/bmm.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/tril.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include "dtrain/model/dropout.h"

// In the comments of this file nh is the number of heads this rank computes: all of them without
// tensor parallelism.

namespace dtrain::model::bdh {
namespace {

constexpr double kNormEpsilon = 1e-5;

// float16 ends at 65,504, which sums of squares over a head's neurons can pass: their scores are
// computed this much smaller. A power of two changes no digit.
constexpr double kHalfQueryScale = 1.0 / 16;
constexpr double kHalfScoreScale = kHalfQueryScale * kHalfQueryScale;

bool is_low(const at::Tensor& x) { return at::isReducedFloatingType(x.scalar_type()); }

// weight (nh*N, D) -> (nh, N, D), a view.
at::Tensor by_head(const at::Tensor& weight, std::int64_t neurons) {
  return weight.view({-1, neurons, weight.size(1)});
}

// strictly_lower(q qᵀ) for q (batch, T, N). Both factors are the same tensor, so with dS the masked
// gradient dq = (dS + dSᵀ) q: one product where autograd would take two.
class StrictGram : public torch::autograd::Function<StrictGram> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& q) {
    ctx->save_for_backward({q});
    return at::bmm(q, q.mT()).tril_(-1);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const at::Tensor lower = grads[0].tril(-1);  // (batch, T, T)
    return {at::bmm(lower + lower.mT(), ctx->get_saved_variables()[0])};
  }
};

// scores (nh*B, T, T) times values (nh*B, T, D), undoing the scale of float16 scores. In float16
// the sums over positions would pass its range, so that this small product is float32.
at::Tensor apply_scores(const at::Tensor& scores, const at::Tensor& values) {
  if (scores.scalar_type() != at::kHalf) return at::bmm(scores, values);
  return at::bmm(scores.to(at::kFloat), values.to(at::kFloat).mul(1 / kHalfScoreScale));
}

}  // namespace

at::Tensor widened(const at::Tensor& x) { return is_low(x) ? x.to(at::kFloat) : x; }

at::Tensor layer_norm(const at::Tensor& x) {
  // With weights in float32 ATen keeps mean and deviation for the backward pass in float32 too.
  const at::Tensor ones =
      is_low(x) ? at::ones({x.size(-1)}, x.options().dtype(at::kFloat)) : at::Tensor();
  return at::layer_norm(x, {x.size(-1)}, ones, {}, kNormEpsilon);
}

at::Tensor BdhEmbedding::forward(const at::Tensor& ids, const BlockContext& context) {
  // The backward of a look-up sums over all places of a token, in the dtype of what it looks up.
  const at::Tensor weight = context.use(ids_[0]);               // (V, D)
  const at::Tensor rows = at::embedding(widened(weight), ids);  // (B, T, D)
  const at::Tensor x = layer_norm(rows).to(weight.scalar_type());
  context.report("act.embed", x);
  return x;
}

// Linear attention of each head over its own past: S = strictly_lower(QR QRᵀ), then LN(S x).
at::Tensor BdhLevel::attend(const at::Tensor& x, const at::Tensor& xs,
                            const BlockContext& context) const {
  const std::int64_t heads = xs.size(0);
  const std::int64_t batch = x.size(0);
  const std::int64_t length = x.size(1);
  const bool is_half = x.scalar_type() == at::kHalf;
  const at::Tensor& table = rope_->table(length, context.buffer_dtype);
  const at::Tensor q = rope_rotate(xs.view({heads * batch, length, sizes_.neurons}),
                                   is_half ? table.to(at::kFloat).mul(kHalfQueryScale) : table);
  const at::Tensor scores = StrictGram::apply(q);  // (nh*B, T, T)
  const at::Tensor values = x.unsqueeze(0)
                                .expand({heads, batch, length, sizes_.width})
                                .reshape({heads * batch, length, sizes_.width});
  const at::Tensor attended = context.tensor_axis.reduce_within_head(apply_scores(scores, values));
  const at::Tensor normed = layer_norm(attended).to(x.scalar_type());  // (nh*B, T, D)
  context.report(fmt::format("act.layer{}.ykv", level_),
                 normed.view({heads, batch, length, sizes_.width}).transpose(0, 1));
  return normed.view({heads, batch * length, sizes_.width});
}

at::Tensor BdhLevel::forward(const at::Tensor& input, const BlockContext& context) {
  const std::int64_t rows = input.size(0) * input.size(1);
  const at::Tensor x = context.tensor_axis.copy_to(input);                   // (B, T, D)
  const at::Tensor encoder = by_head(context.use(ids_[0]), sizes_.neurons);  // (nh, N, D)
  const std::int64_t heads = encoder.size(0);
  const at::Tensor x_rows = x.reshape({1, rows, sizes_.width}).expand({heads, rows, sizes_.width});
  const at::Tensor xs = at::bmm(x_rows, encoder.mT()).relu_();  // (nh, B*T, N)

  const at::Tensor y_kv = attend(x, xs, context);  // (nh, B*T, D)
  const at::Tensor encoder_v = by_head(context.use(ids_[1]), sizes_.neurons);
  const at::Tensor ys = at::bmm(y_kv, encoder_v.mT()).relu_();  // (nh, B*T, N)

  at::Tensor gated = xs * ys;  // (nh, B*T, N)
  if (context.training && sizes_.dropout > 0) {
    const DropoutPlace place{.seed = context.seed,
                             .level = level_,
                             .first_sample = context.first_sample,
                             .first_row = context.tensor_axis.index() * heads};
    gated = dropout(gated.view({heads, input.size(0), input.size(1), sizes_.neurons}),
                    sizes_.dropout, place)
                .view({heads, rows, sizes_.neurons});
  }
  const at::Tensor decoder = by_head(context.use(ids_[2]), sizes_.neurons);  // (nh, N, D)
  // ATen sums low dtypes in float32.
  const at::Tensor decoded = at::bmm(gated, decoder).sum(0).view(input.sizes());
  const at::Tensor y = layer_norm(context.tensor_axis.reduce_from(decoded));  // (B, T, D)
  context.report(fmt::format("act.layer{}.ymlp", level_), y);
  const at::Tensor out = layer_norm(input + y);  // (B, T, D)
  context.report(fmt::format("act.layer{}.out", level_), out);
  return out;
}

at::Tensor BdhHead::forward(const at::Tensor& x, const BlockContext& context) {
  const at::Tensor logits =
      widened(at::mm(x.reshape({-1, sizes_.width}), context.use(ids_[0])));  // (B*T, V)
  context.report("logits", logits.view({x.size(0), x.size(1), sizes_.vocab}));
  return at::cross_entropy_loss(logits, context.targets.reshape(-1), {}, at::Reduction::None)
      .view({x.size(0), x.size(1)});
}

}  // namespace dtrain::model::bdh
