#include "dtrain/model/bdh/bdh_blocks.h"

#include <ATen/ops/bmm.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/tril.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include "dtrain/model/dropout.h"
#include "dtrain/model/widened.h"

// In the comments of this file nh and N are the heads and neurons per head that this rank computes:
// all of them without tensor parallelism. tp is 1 where the vocabulary is not split.

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

at::Tensor layer_norm(const at::Tensor& x) {
  // With weights in float32 ATen keeps mean and deviation for the backward pass in float32 too.
  const at::Tensor ones =
      is_low(x) ? at::ones({x.size(-1)}, x.options().dtype(at::kFloat)) : at::Tensor();
  return at::layer_norm(x, {x.size(-1)}, ones, {}, kNormEpsilon);
}

at::Tensor BdhEmbedding::forward(const at::Tensor& ids, const BlockContext& context) {
  part_.check(context.tensor_axis);
  const at::Tensor weight = context.use(ids_[0]);  // (V/tp, D)
  TensorAxis whole;
  TensorAxis& axis = part_.splits_vocab() ? context.tensor_axis : whole;
  const at::Tensor rows = axis.embedding(weight, ids, part_.first_token);  // (B, T, D)
  const at::Tensor x = layer_norm(rows).to(weight.scalar_type());
  context.report("act.embed", x);
  return x;
}

// Linear attention of each head over its own past: S = strictly_lower(QR QRᵀ), then LN(S x). S x is
// linear in the sum over neurons that makes S, so that ranks sharing a head add up S x, never S.
at::Tensor BdhLevel::attend(const at::Tensor& x, const at::Tensor& xs,
                            const BlockContext& context) const {
  const std::int64_t heads = xs.size(0);
  const std::int64_t batch = x.size(0);
  const std::int64_t length = x.size(1);
  const std::int64_t width = x.size(2);
  const bool is_half = xs.scalar_type() == at::kHalf;
  const at::Tensor& table = rope_->table(length, context.buffer_dtype);
  const at::Tensor q = rope_rotate(xs.view({heads * batch, length, part_.neurons}),
                                   is_half ? table.to(at::kFloat).mul(kHalfQueryScale) : table);
  const at::Tensor scores = StrictGram::apply(q);  // (nh*B, T, T)
  const at::Tensor values =
      x.unsqueeze(0).expand({heads, batch, length, width}).reshape({heads * batch, length, width});
  const at::Tensor attended =
      context.tensor_axis.reduce_within(kHeadSubgroup, apply_scores(scores, values));
  const at::Tensor normed = layer_norm(attended).to(xs.scalar_type());  // (nh*B, T, D)
  context.report(fmt::format("act.layer{}.ykv", level_),
                 normed.view({heads, batch, length, width}).transpose(0, 1));
  return normed.view({heads, batch * length, width});
}

at::Tensor BdhLevel::gate(const at::Tensor& xs, const at::Tensor& ys, std::int64_t batch,
                          const BlockContext& context) const {
  const at::Tensor gated = xs * ys;  // (nh, B*T, N)
  if (!context.training || part_.whole.dropout == 0) return gated;
  const DropoutPlace place{.seed = context.seed,
                           .level = level_,
                           .first_sample = context.first_sample,
                           .first_neuron = part_.first_neuron};
  return dropout(gated.view({gated.size(0), batch, -1, part_.neurons}), part_.whole.dropout, place)
      .view(gated.sizes());
}

at::Tensor BdhLevel::forward(const at::Tensor& input, const BlockContext& context) {
  TensorAxis& axis = context.tensor_axis;
  part_.check(axis);
  const at::Tensor encoder = by_head(context.use(ids_[0]), part_.neurons);  // (nh, N, D)
  const ColumnSplit encoded = axis.column_split(input, encoder);
  const at::Tensor xs = encoded.product.relu_();  // (nh, B*T, N)

  const at::Tensor y_kv = attend(encoded.x, xs, context);  // (nh, B*T, D)
  const at::Tensor encoder_v = by_head(context.use(ids_[1]), part_.neurons);
  const at::Tensor ys =
      axis.column_split_within(kHeadSubgroup, y_kv, encoder_v).relu_();  // (nh, B*T, N)

  const at::Tensor gated = gate(xs, ys, input.size(0), context);            // (nh, B*T, N)
  const at::Tensor decoder = by_head(context.use(ids_[2]), part_.neurons);  // (nh, N, D)
  const at::Tensor decoded = axis.row_split(gated, decoder).view(input.sizes());
  const at::Tensor y = layer_norm(decoded);  // (B, T, D)
  context.report(fmt::format("act.layer{}.ymlp", level_), y);
  const at::Tensor out = layer_norm(input + y);  // (B, T, D)
  context.report(fmt::format("act.layer{}.out", level_), out);
  return out;
}

// (B*T, V/tp), float32 for 16 bits.
at::Tensor BdhHead::logits(const at::Tensor& x, const BlockContext& context) const {
  const at::Tensor weight = context.use(ids_[0]);  // (D, V/tp)
  if (!part_.splits_vocab()) {
    return widened(at::mm(x.reshape({-1, part_.whole.width}), weight));
  }
  const at::Tensor columns = weight.t().unsqueeze(0);  // (1, V/tp, D)
  return widened(context.tensor_axis.column_split(x, columns).product.squeeze(0));
}

at::Tensor BdhHead::forward(const at::Tensor& x, const BlockContext& context) {
  part_.check(context.tensor_axis);
  const at::Tensor scores = logits(x, context);
  context.report("logits", scores.view({x.size(0), x.size(1), part_.vocab}));
  TensorAxis whole;
  TensorAxis& axis = part_.splits_vocab() ? context.tensor_axis : whole;
  return axis.cross_entropy(scores, context.targets.reshape(-1), part_.first_token)
      .view({x.size(0), x.size(1)});
}

}  // namespace dtrain::model::bdh
