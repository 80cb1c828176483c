#include "dtrain/model/gpt2/internal/gpt2_blocks.h"

#include <ATen/TensorOperators.h>

#include <algorithm>

#include "dtrain/base/error.h"
#include "dtrain/model/gpt2/internal/layer_norm.h"
#include "dtrain/model/split_linear.h"
#include "dtrain/model/transformer/operations.h"

// Each block's memory() adds up the tensors that its forward and backward save and create.

namespace dtrain::model::gpt2 {
namespace {

constexpr std::int64_t kMapsPerHead = 3;  // query, key, value

std::optional<at::Tensor> bias_of(const WeightAndBias& ids, const BlockContext& context) {
  return ids.bias ? std::optional(context.use(*ids.bias)) : std::nullopt;
}

// x (B, T, D) -> (B, T, D)
at::Tensor normed_by(const WeightAndBias& ids, const at::Tensor& x, double epsilon,
                     const BlockContext& context) {
  const at::Tensor weight = context.use(ids.weight);
  return layer_norm(x, weight, bias_of(ids, context), epsilon);
}

void append(const WeightAndBias& ids, std::vector<param::ParameterId>& all) {
  all.push_back(ids.weight);
  if (ids.bias) all.push_back(*ids.bias);
}

}  // namespace

at::Tensor Gpt2Embedding::forward(const at::Tensor& ids, const BlockContext& context) {
  const at::Tensor rows = embedded(context.use(ids_[0]), ids, slice_.vocab, context);  // (B, T, D)
  const at::Tensor positions = context.use(ids_[1]).narrow(0, 0, ids.size(1));         // (T, D)
  const at::Tensor x = dropped(rows + positions, slice_.whole.dropout,
                               embedding_dropout_index(slice_.whole.layers), context);
  context.report("act.embed", x);
  return x;
}

BlockMemory Gpt2Embedding::memory(const BatchShape& shape) const {
  BlockMemory memory =
      embedding_memory(shape, slice_.whole.width, slice_.vocab, slice_.whole.dropout > 0);
  const std::int64_t low = size_of(shape.dtype);
  const std::int64_t row = shape.rows() * slice_.whole.width * low;
  const std::int64_t dropped = shape.training && slice_.whole.dropout > 0 ? row : 0;
  memory.forward = std::max(memory.forward, 2 * row + dropped);  // rows, and their sum
  memory.forward_without_graph = memory.forward;
  // The gradients of the positions in use and of all are freed before those of the tokens appear.
  const std::int64_t positions = (shape.length + slice_.whole.positions) * slice_.whole.width * low;
  memory.backward = std::max(memory.backward, positions + dropped);
  return memory;
}

Gpt2Layer::Gpt2Layer(const Gpt2Slice& slice, std::int64_t layer, const LayerParameters& ids,
                     const RowOperations& rows)
    : slice_(slice), layer_(layer), ids_(ids), rows_(rows) {
  for (const WeightAndBias* each :
       {&ids.attention_norm, &ids.packed, &ids.output, &ids.mlp_norm, &ids.up, &ids.down}) {
    append(*each, all_);
  }
}

// Column-parallel map of x (B, T, D), which is equal on all ranks -> (B, T, N/tp).
at::Tensor Gpt2Layer::split_map(const at::Tensor& x, const WeightAndBias& map,
                                const BlockContext& context) const {
  const at::Tensor weight = context.use(map.weight);  // (N/tp, D)
  const at::Tensor bias = map.bias ? context.use(*map.bias) : at::Tensor();
  return column_linear(context.tensor_axis.replicated(x), weight, bias, x.scalar_type());
}

// Row-parallel map to the residual stream: x (B, T, N/tp) -> (B, T, D). The bias is added once, to
// the sum over ranks.
at::Tensor Gpt2Layer::to_stream(const at::Tensor& x, const WeightAndBias& map,
                                const BlockContext& context) const {
  const at::Tensor sum = row_linear(context.tensor_axis, x, context.use(map.weight).mT());
  return map.bias ? sum + context.use(*map.bias) : sum;
}

at::Tensor Gpt2Layer::attend(const at::Tensor& x, const BlockContext& context) const {
  const at::Tensor normed = normed_by(ids_.attention_norm, x, slice_.whole.norm_epsilon, context);
  const at::Tensor packed = split_map(normed, ids_.packed, context);  // (B, T, H/tp*3*d)
  const auto maps =
      packed.view({x.size(0), x.size(1), slice_.heads, kMapsPerHead, slice_.whole.head_dim()})
          .unbind(3);  // each (B, T, H/tp, d)
  const at::Tensor joined = causal_attention(maps[0].transpose(1, 2), maps[1].transpose(1, 2),
                                             maps[2].transpose(1, 2));  // (B, T, H/tp*d)
  return to_stream(joined, ids_.output, context);
}

at::Tensor Gpt2Layer::transform(const at::Tensor& x, const BlockContext& context) const {
  const at::Tensor normed = normed_by(ids_.mlp_norm, x, slice_.whole.norm_epsilon, context);
  const at::Tensor hidden = rows_.gelu(split_map(normed, ids_.up, context));  // (B, T, I/tp)
  return to_stream(hidden, ids_.down, context);
}

at::Tensor Gpt2Layer::forward(const at::Tensor& x, const BlockContext& context) {
  DTRAIN_CHECK(context.tensor_axis.size() == slice_.place.size);
  return residual_layer(
      x, {.index = layer_, .dropout = slice_.whole.dropout}, context,
      [&](const at::Tensor& y) { return attend(y, context); },
      [&](const at::Tensor& y) { return transform(y, context); });
}

BlockMemory Gpt2Layer::memory(const BatchShape& shape) const {
  const Gpt2Sizes& sizes = slice_.whole;
  const std::int64_t low = size_of(shape.dtype);
  const std::int64_t wide = wide_size(shape.dtype);
  const std::int64_t rows = shape.rows();
  const std::int64_t row = rows * sizes.width * low;
  const std::int64_t query = rows * slice_.heads * sizes.head_dim() * low;
  const std::int64_t hidden = rows * slice_.inner * low;
  const std::int64_t statistics = 2 * rows * wide;
  const std::int64_t logsumexp = rows * slice_.heads * wide;
  // Queries, keys, values and output; both normed inputs and the sum between; the input and the
  // output of GELU.
  BlockMemory memory{.output = row};
  memory.saved = 4 * query + logsumexp + 3 * row + 2 * hidden + 2 * statistics;
  const std::int64_t dropped = shape.training && sizes.dropout > 0 ? row : 0;
  memory.forward = memory.saved + memory.output + row + dropped;
  memory.forward_without_graph =
      std::max({3 * row + 4 * query, 2 * row + 2 * hidden, 4 * row + hidden});
  // A weight's gradient lives until it is added. At attention, the gradients of queries, keys and
  // values are there, in 16 bits as float32, and the values of the MLP are freed.
  const std::int64_t largest =
      std::max(slice_.inner, kMapsPerHead * slice_.heads * sizes.head_dim());
  const std::int64_t weight = largest * sizes.width * low;
  memory.backward =
      memory.saved + std::max(hidden + weight + dropped, 3 * query / low * wide - 2 * hidden);
  if (slice_.place.is_whole()) return memory;
  add_widened_memory(memory, shape,
                     {.width = sizes.width, .inner = slice_.inner, .largest = largest});
  return memory;
}

Gpt2Head::Gpt2Head(const Gpt2Slice& slice, const WeightAndBias& norm, param::ParameterId head,
                   const RowOperations& rows)
    : slice_(slice), norm_(norm), head_(head), rows_(rows) {
  append(norm, all_);
  all_.push_back(head);
}

at::Tensor Gpt2Head::forward(const at::Tensor& x, const BlockContext& context) {
  const at::Tensor normed = normed_by(norm_, x, slice_.whole.norm_epsilon, context);
  return token_losses(normed, context.use(head_), slice_.vocab, rows_, context);
}

BlockMemory Gpt2Head::memory(const BatchShape& shape) const {
  BlockMemory memory = losses_memory(shape, slice_.whole.width, slice_.vocab, rows_);
  const std::int64_t mean = shape.rows() * wide_size(shape.dtype);  // besides the scale
  memory.saved += mean;
  memory.forward += mean;
  memory.forward_without_graph += mean;
  memory.backward += mean;
  return memory;
}

}  // namespace dtrain::model::gpt2
