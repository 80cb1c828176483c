#include "dtrain/model/bdh/internal/bdh_blocks.h"

#include <ATen/ops/bmm.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/tril.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "dtrain/model/bdh/internal/chunked_attention.h"
#include "dtrain/model/dropout.h"
#include "dtrain/model/split_linear.h"

// Each block's memory() adds up the tensors that its forward and backward save and create; its
// variables are named like the tensors in forward.
//
// In the comments of this file nh and N are the heads and neurons per head of this rank: all of them
// without tensor parallelism. tp is 1 if the vocabulary is not split.

namespace dtrain::model::bdh {
namespace {

constexpr double kNormEpsilon = 1e-5;

// Sums of squares over a head's neurons can exceed float16's maximum, 65,504, so its scores are
// scaled down by a power of two, which is exact.
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
    return {at::bmm(mirror_lower(grads[0]), ctx->get_saved_variables()[0])};
  }
};

}  // namespace

at::Tensor layer_norm(const at::Tensor& x) {
  // The CPU kernel stores mean and deviation in the dtype of the weight, so it is given float32 ones.
  // CUDA stores them in float32 anyway, and rejects a weight of another dtype than x's.
  const bool needs_ones = is_low(x) && x.is_cpu();
  const at::Tensor ones =
      needs_ones ? at::ones({x.size(-1)}, x.options().dtype(at::kFloat)) : at::Tensor();
  return at::layer_norm(x, {x.size(-1)}, ones, {}, kNormEpsilon);
}

at::Tensor BdhEmbedding::forward(const at::Tensor& ids, const BlockContext& context) {
  slice_.check(context.tensor_axis);
  const at::Tensor weight = context.use(ids_[0]);  // (V/tp, D)
  TensorAxis whole;
  TensorAxis& axis = slice_.splits_vocab() ? context.tensor_axis : whole;
  const at::Tensor rows = axis.embedding(weight, ids, slice_.first_token);  // (B, T, D)
  const at::Tensor x = layer_norm(rows).to(weight.scalar_type());
  context.report("act.embed", x);
  return x;
}

BlockMemory BdhEmbedding::memory(const BatchShape& shape) const {
  const std::int64_t low = size_of(shape.dtype);
  const std::int64_t wide = wide_size(shape.dtype);
  const std::int64_t row = shape.rows() * slice_.whole.width;
  const std::int64_t rows = row * wide;
  const std::int64_t statistics = 2 * shape.rows() * wide;
  const std::int64_t normed = low == wide ? 0 : row * wide;  // before it is rounded
  const std::int64_t weight = slice_.vocab * slice_.whole.width * wide;
  BlockMemory memory{.output = row * low, .saved = rows + statistics};
  // A split vocabulary needs the looked-up rows and a copy that masks the rows of other ranks.
  const std::int64_t looked_up = slice_.splits_vocab() ? 2 * rows : 0;
  const std::int64_t widened_weight = low == wide ? 0 : weight;
  memory.forward =
      std::max(memory.saved + std::max(looked_up, normed + memory.output), rows + widened_weight);
  memory.forward_without_graph = memory.forward;
  // The gradients of the norm's input and, if it was rounded, of its output; then the weight's.
  const std::int64_t at_norm = memory.saved + rows + (low == wide ? 0 : rows);
  const std::int64_t at_weight = weight + std::max(rows + looked_up / 2, widened_weight / 2);
  memory.backward = std::max(at_norm, at_weight);
  return memory;
}

// Strictly causal linear attention per head: S = strictly_lower(q qᵀ), then LN(S x). S x is linear in
// the sum over neurons in S, so ranks that share a head all-reduce S x, never S.
at::Tensor BdhLevel::attend(const at::Tensor& x, const at::Tensor& xs,
                            const BlockContext& context) const {
  const std::int64_t heads = xs.size(0);
  const std::int64_t batch = x.size(0);
  const std::int64_t length = x.size(1);
  const std::int64_t width = x.size(2);
  const bool is_half = xs.scalar_type() == at::kHalf;
  const at::Tensor& table =
      rope_->table(length, context.buffer_dtype, x.options().dtype(context.buffer_dtype));
  const at::Tensor q = rope_rotate(xs.view({heads * batch, length, slice_.neurons}),
                                   is_half ? table.to(at::kFloat).mul(kHalfQueryScale) : table);
  const bool is_cut = span_ > 0 && span_ < length;
  const at::Tensor scores = is_cut ? at::Tensor() : StrictGram::apply(q);  // (nh*B, T, T)
  at::Tensor values =                                                      // (nh*B, T, D)
      x.unsqueeze(0).expand({heads, batch, length, width}).reshape({heads * batch, length, width});
  // The scale of the scores is undone in float32, because the sums over positions would overflow in
  // float16. Ranks that split the neurons receive x in float32 already.
  if (is_half) values = values.to(at::kFloat).mul(1 / kHalfScoreScale);
  const at::Tensor own = is_cut ? attend_in_chunks(q, values, span_)
                                : at::bmm(scores.to(values.scalar_type()), values);
  const at::Tensor attended = context.tensor_axis.reduce_within(kHeadSubgroup, own);
  const at::Tensor normed = layer_norm(attended).to(xs.scalar_type());  // (nh*B, T, D)
  context.report(fmt::format("act.layer{}.ykv", level_),
                 normed.view({heads, batch, length, width}).transpose(0, 1));
  return normed.view({heads, batch * length, width});
}

at::Tensor BdhLevel::gate(const at::Tensor& xs, const at::Tensor& ys, std::int64_t batch,
                          const BlockContext& context) const {
  const at::Tensor gated = xs * ys;  // (nh, B*T, N)
  if (!context.training || slice_.whole.dropout == 0) return gated;
  const DropoutOffsets place{.seed = context.seed,
                             .level = level_,
                             .first_sample = context.first_sample,
                             .first_neuron = slice_.first_neuron};
  return dropout(gated.view({gated.size(0), batch, -1, slice_.neurons}), slice_.whole.dropout,
                 place)
      .view(gated.sizes());
}

at::Tensor BdhLevel::forward(const at::Tensor& input, const BlockContext& context) {
  TensorAxis& axis = context.tensor_axis;
  slice_.check(axis);
  const at::Tensor encoder = by_head(context.use(ids_[0]), slice_.neurons);  // (nh, N, D)
  const ColumnSplit encoded = axis.column_split(input, encoder);
  const at::Tensor xs = encoded.product.relu_();  // (nh, B*T, N)

  const at::Tensor y_kv = attend(encoded.x, xs, context);  // (nh, B*T, D)
  const at::Tensor encoder_v = by_head(context.use(ids_[1]), slice_.neurons);
  const at::Tensor ys =
      axis.column_split_within(kHeadSubgroup, y_kv, encoder_v).relu_();  // (nh, B*T, N)

  const at::Tensor gated = gate(xs, ys, input.size(0), context);             // (nh, B*T, N)
  const at::Tensor decoder = by_head(context.use(ids_[2]), slice_.neurons);  // (nh, N, D)
  const at::Tensor decoded = axis.row_split(gated, decoder).view(input.sizes());
  const at::Tensor y = layer_norm(decoded);  // (B, T, D)
  context.report(fmt::format("act.layer{}.ymlp", level_), y);
  const at::Tensor out = layer_norm(input + y);  // (B, T, D)
  context.report(fmt::format("act.layer{}.out", level_), out);
  return out;
}

// Temporaries of chunked attention.
ChunkWork BdhLevel::work_of(const BatchShape& shape) const {
  return chunk_work(shape.dtype, shape.sequences * slice_.all_neurons() * slice_.whole.width,
                    shape.sequences * span_ * slice_.all_neurons(),
                    shape.sequences * slice_.heads * span_ * span_);
}

BlockMemory BdhLevel::memory(const BatchShape& shape) const {
  const std::int64_t low = size_of(shape.dtype);
  const std::int64_t wide = wide_size(shape.dtype);
  const bool is_half = shape.dtype == at::kHalf;
  const std::int64_t rows = shape.rows();
  const std::int64_t neurons = rows * slice_.all_neurons() * low;  // xs, q, ys, gated: each
  const std::int64_t per_head = rows * slice_.heads * slice_.whole.width;
  const std::int64_t row = rows * slice_.whole.width * low;
  const std::int64_t weight = slice_.all_neurons() * slice_.whole.width * low;
  // float16 multiplies scores and values in float32, and each level scales its own copy of the table.
  const std::int64_t attention = is_half ? wide : low;
  const std::int64_t table = is_half ? shape.length * slice_.neurons * wide : 0;
  const bool is_cut = span_ > 0 && span_ < shape.length;
  const std::int64_t reach = is_cut ? span_ : shape.length;
  const std::int64_t low_scores = rows * slice_.heads * reach * low;
  const std::int64_t scores = is_cut ? low_scores : rows * slice_.heads * reach * attention;
  const std::int64_t rounded = is_half && !is_cut ? low_scores : 0;
  const ChunkWork work = is_cut ? work_of(shape) : ChunkWork{};
  const std::int64_t attended = per_head * attention;
  // A single head reads its input in place.
  const std::int64_t values = slice_.heads > 1 || is_half ? attended : 0;
  const std::int64_t normed = per_head * low;
  const std::int64_t statistics = 2 * rows * (slice_.heads + 2) * wide;
  const std::int64_t dropped = shape.training && slice_.whole.dropout > 0 ? neurons : 0;
  // All-reduces work on a copy, in float32 for float16. Ranks that share a head multiply float16's
  // gated neurons by the decoder in float32.
  const bool is_shared = slice_.ranks_per_head > 1;
  const std::int64_t summed =
      slice_.place.is_whole() ? 0 : 2 * rows * slice_.whole.width * attention;
  const std::int64_t head_sum = is_shared ? attended : 0;
  const std::int64_t widened_gate = is_shared && is_half ? neurons + 2 * weight : 0;

  BlockMemory memory{.output = row};
  const std::int64_t attention_saved = scores + values + attended + normed + table + statistics;
  memory.saved = 4 * neurons + widened_gate + attention_saved + 2 * row;  // decoded, input + y
  // After gating: each head's contribution to decoded, then two norms, whose input is not saved yet.
  const std::int64_t norms = 2 * row + 2 * 2 * rows * wide;
  const std::int64_t decoding = std::max({dropped, normed + row, summed});
  memory.forward =
      std::max(memory.saved - norms + decoding, memory.saved + row + memory.output);  // y
  const std::int64_t head_statistics = 2 * rows * slice_.heads * wide;
  const std::int64_t attending = 2 * neurons + rounded + scores + values + attended + head_sum +
                                 std::max(work.forward, normed + head_statistics);
  memory.forward =
      std::max(memory.forward, 2 * neurons + table + scores + values + attended + work.forward);
  memory.forward_without_graph =
      std::max(attending, 3 * neurons + widened_gate + normed + decoding);
  const std::int64_t at_decoder = 5 * neurons + 2 * widened_gate + attention_saved + weight;
  const std::int64_t at_gate = 6 * neurons + attention_saved;  // xs, q, ys, three gradients
  const std::int64_t at_scores =
      is_cut ? 4 * neurons + scores + values + 2 * attended + work.backward
             : std::max(3 * neurons + 2 * scores + rounded + values + 2 * attended,
                        4 * neurons + 2 * low_scores);
  // xs, q and the gradient of xs; the gradient of encoder_v is transposed and copied.
  const std::int64_t at_encoder = 3 * neurons + attention_saved + 2 * weight;
  memory.backward = std::max({at_decoder, at_gate, at_encoder, at_scores + table}) + 2 * row +
                    summed;  // the gradients of the input through both of its uses
  return memory;
}

// Returns (B*T, V/tp), float32 for 16-bit dtypes.
at::Tensor BdhHead::logits(const at::Tensor& x, const BlockContext& context) const {
  const at::Tensor weight = context.use(ids_[0]);  // (D, V/tp)
  if (!slice_.splits_vocab()) {
    return widened(at::mm(x.reshape({-1, slice_.whole.width}), weight));
  }
  if (x.scalar_type() == at::kHalf) {  // a rank's part of the gradient of x may exceed its range
    const at::Tensor shared = context.tensor_axis.replicated(x).reshape({-1, slice_.whole.width});
    return widened(column_linear(shared, weight.t(), {}, x.scalar_type()));
  }
  const at::Tensor columns = weight.t().unsqueeze(0);  // (1, V/tp, D)
  return widened(context.tensor_axis.column_split(x, columns).product.squeeze(0));
}

at::Tensor BdhHead::forward(const at::Tensor& x, const BlockContext& context) {
  slice_.check(context.tensor_axis);
  const at::Tensor scores = logits(x, context);
  context.report("logits", scores.view({x.size(0), x.size(1), slice_.vocab}));
  TensorAxis whole;
  TensorAxis& axis = slice_.splits_vocab() ? context.tensor_axis : whole;
  return axis.cross_entropy(scores, context.targets.reshape(-1), slice_.first_token)
      .view({x.size(0), x.size(1)});
}

BlockMemory BdhHead::memory(const BatchShape& shape) const {
  const std::int64_t low = size_of(shape.dtype);
  const std::int64_t wide = wide_size(shape.dtype);
  const std::int64_t logits = shape.rows() * slice_.vocab * wide;
  const std::int64_t rounded = low == wide ? 0 : shape.rows() * slice_.vocab * low;
  const std::int64_t weight = slice_.vocab * slice_.whole.width * low;
  BlockMemory memory{.output = shape.rows() * wide, .saved = logits};  // of the log-softmax
  memory.forward = 2 * logits + memory.output;
  memory.forward_without_graph = memory.forward;
  // The gradients of the log-softmax's output and input, or of the product. With a split vocabulary,
  // cross-entropy computes the gradient of the logits directly.
  const std::int64_t at_softmax = slice_.splits_vocab() ? logits : 2 * logits;
  const std::int64_t row = shape.rows() * slice_.whole.width;
  std::int64_t at_product = (rounded == 0 ? logits : rounded) + row * low + weight;
  if (slice_.splits_vocab() && shape.dtype == at::kHalf) {  // column_linear: all in float32
    memory.saved += row * wide;
    memory.forward += row * (wide + low);
    memory.forward_without_graph = memory.forward;
    at_product = rounded + logits + row * wide + weight * wide / low;
  }
  memory.backward = memory.saved + std::max(at_softmax, at_product);
  return memory;
}

}  // namespace dtrain::model::bdh
