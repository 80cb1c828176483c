#include "dtrain/model/llama/internal/llama_blocks.h"

#include <ATen/TensorOperators.h>

#include <algorithm>

#include "dtrain/base/error.h"
#include "dtrain/model/split_linear.h"
#include "dtrain/model/transformer/operations.h"

// Each block's memory() adds up the tensors that its forward and backward save and create.

namespace dtrain::model::llama {
namespace {

// Returns the head of keys or values for each query of the slice: heads (B, K, T, d), each for H/K
// consecutive queries of the whole model, -> (B, H, T, d).
at::Tensor for_queries(const at::Tensor& heads, const LlamaSlice& slice) {
  const std::int64_t group = slice.whole.heads / slice.whole.kv_heads;
  if (group == 1) return heads;
  const auto sizes = heads.sizes();
  const at::Tensor repeated = heads.unsqueeze(2)
                                  .expand({sizes[0], sizes[1], group, sizes[2], sizes[3]})
                                  .reshape({sizes[0], sizes[1] * group, sizes[2], sizes[3]});
  return repeated.narrow(1, slice.first_head - slice.first_kv_head * group, slice.heads);
}

}  // namespace

at::Tensor LlamaEmbedding::forward(const at::Tensor& ids, const BlockContext& context) {
  const at::Tensor rows = embedded(context.use(ids_[0]), ids, slice_.vocab, context);  // (B, T, D)
  const at::Tensor x =
      dropped(rows, slice_.whole.dropout, embedding_dropout_index(slice_.whole.layers), context);
  context.report("act.embed", x);
  return x;
}

BlockMemory LlamaEmbedding::memory(const BatchShape& shape) const {
  return embedding_memory(shape, slice_.whole.width, slice_.vocab, slice_.whole.dropout > 0);
}

LlamaLayer::LlamaLayer(const LlamaSlice& slice, std::int64_t layer, const LayerParameters& ids,
                       std::shared_ptr<RotaryTables> rotary, const RowOperations& rows)
    : slice_(slice),
      layer_(layer),
      ids_(ids),
      all_{ids.input_norm,    ids.query, ids.key, ids.value, ids.output,
           ids.attended_norm, ids.gate,  ids.up,  ids.down},
      rotary_(std::move(rotary)),
      rows_(rows) {
  for (const auto& each : {ids.query_bias, ids.key_bias, ids.value_bias, ids.output_bias,
                           ids.query_norm, ids.key_norm}) {
    if (each) all_.push_back(*each);
  }
}

LlamaLayer::Shared LlamaLayer::normed(const at::Tensor& x, param::ParameterId norm,
                                      const BlockContext& context) const {
  const at::Tensor y = rows_.rms_norm(x, context.use(norm), slice_.whole.norm_epsilon);
  return {.x = context.tensor_axis.replicated(y), .dtype = x.scalar_type()};
}

// (B, T, D) -> (B, T, heads, d), a view. read: returns the rows of a parameter to use.
at::Tensor LlamaLayer::project(const Shared& input, param::ParameterId weight,
                               const std::optional<param::ParameterId>& bias,
                               const ParameterReader& read) const {
  const at::Tensor& x = input.x;
  const at::Tensor added = bias ? read(*bias) : at::Tensor();
  return column_linear(x, read(weight), added, input.dtype)
      .view({x.size(0), x.size(1), -1, slice_.whole.head_dim});
}

// Projects the keys or values that this rank's queries use. If every rank holds all heads, it
// computes with the rows that it uses, whose gradient is summed over ranks.
at::Tensor LlamaLayer::keys_or_values(const Shared& input, param::ParameterId weight,
                                      const std::optional<param::ParameterId>& bias,
                                      const BlockContext& context) const {
  if (slice_.splits_kv) return project(input, weight, bias, context.use);
  const std::int64_t first = slice_.first_kv_head * slice_.whole.head_dim;
  const std::int64_t count = slice_.kv_heads * slice_.whole.head_dim;
  return project(input, weight, bias, [&](param::ParameterId id) {
    return context.tensor_axis.replicated(context.use(id)).narrow(0, first, count);
  });
}

// Normalizes heads (B, T, heads, d) if the model does, and rotates them by their positions -> (B, heads, T, d).
at::Tensor LlamaLayer::positioned(const at::Tensor& heads,
                                  const std::optional<param::ParameterId>& norm,
                                  const BlockContext& context) const {
  const RotaryTable& table = rotary_->table(heads.size(1), heads.options());
  if (!norm) return rows_.rotate_halves(heads.transpose(1, 2), table);
  const at::Tensor weight = context.tensor_axis.replicated(context.use(*norm));
  const at::Tensor normed = rows_.rms_norm(heads, weight, slice_.whole.norm_epsilon);
  return rows_.rotate_halves(normed.transpose(1, 2), table);
}

at::Tensor LlamaLayer::attend(const at::Tensor& x, const BlockContext& context) const {
  const Shared input = normed(x, ids_.input_norm, context);
  const at::Tensor query = positioned(project(input, ids_.query, ids_.query_bias, context.use),
                                      ids_.query_norm, context);
  const at::Tensor key =
      positioned(keys_or_values(input, ids_.key, ids_.key_bias, context), ids_.key_norm, context);
  const at::Tensor value =
      keys_or_values(input, ids_.value, ids_.value_bias, context).transpose(1, 2);
  const at::Tensor joined =
      causal_attention(query, for_queries(key, slice_), for_queries(value, slice_));
  const at::Tensor sum = row_linear(context.tensor_axis, joined, context.use(ids_.output));
  return ids_.output_bias ? sum + context.use(*ids_.output_bias) : sum;
}

at::Tensor LlamaLayer::transform(const at::Tensor& x, const BlockContext& context) const {
  const Shared input = normed(x, ids_.attended_norm, context);
  const at::Tensor gate = column_linear(input.x, context.use(ids_.gate), {}, input.dtype);
  const at::Tensor up = column_linear(input.x, context.use(ids_.up), {}, input.dtype);
  return row_linear(context.tensor_axis, rows_.swiglu(gate, up), context.use(ids_.down));
}

at::Tensor LlamaLayer::forward(const at::Tensor& x, const BlockContext& context) {
  DTRAIN_CHECK(context.tensor_axis.size() == slice_.place.size);
  return residual_layer(
      x, {.index = layer_, .dropout = slice_.whole.dropout}, context,
      [&](const at::Tensor& y) { return attend(y, context); },
      [&](const at::Tensor& y) { return transform(y, context); });
}

BlockMemory LlamaLayer::memory(const BatchShape& shape) const {
  const LlamaSizes& sizes = slice_.whole;
  const std::int64_t low = size_of(shape.dtype);
  const std::int64_t wide = wide_size(shape.dtype);
  const std::int64_t rows = shape.rows();
  const std::int64_t row = rows * sizes.width * low;
  const std::int64_t query = rows * slice_.heads * sizes.head_dim * low;
  const std::int64_t key = rows * slice_.kv_heads * sizes.head_dim * low;
  const std::int64_t hidden = rows * slice_.intermediate * low;
  const std::int64_t statistics = rows * wide;
  const std::int64_t logsumexp = rows * slice_.heads * wide;
  const bool repeats = slice_.heads != slice_.kv_heads;
  // Rotated queries and repeated keys and values; the output, with plain kernels twice (as computed
  // and joined).
  const std::int64_t queries = (rows_.is_fused ? 2 : 3) * query;
  const std::int64_t repeated_keys = repeats ? 2 * query : 2 * key;
  const std::int64_t copied_keys = repeats ? 2 * query : 0;
  const std::int64_t head_norms =
      sizes.norms_heads ? query + key + rows * (slice_.heads + slice_.kv_heads) * wide : 0;
  const std::int64_t attention = queries + repeated_keys + logsumexp + head_norms;
  BlockMemory memory{.output = row};
  memory.saved = attention + 3 * hidden + 3 * row + 2 * statistics;
  const std::int64_t dropped = shape.training && sizes.dropout > 0 ? row : 0;
  memory.forward = memory.saved + memory.output + row + dropped;
  // In the MLP, while attention is computed, and with its output.
  memory.forward_without_graph =
      std::max({3 * row + 3 * hidden, row + 2 * (query + key) + copied_keys + logsumexp,
                2 * row + queries + 2 * key});
  // A weight's gradient lives until it is added. Of a weight that every rank holds whole, there are
  // two copies while it is summed over ranks.
  const std::int64_t weight =
      std::max(slice_.intermediate, slice_.heads * sizes.head_dim) * sizes.width * low;
  const std::int64_t summed =
      slice_.splits_kv ? 0 : sizes.kv_heads * sizes.head_dim * sizes.width * (low + wide);
  // At SwiGLU, three more values of the MLP, less its output, which is free by then; at attention, the
  // gradients of queries, keys and values, when all values of the MLP are.
  memory.backward = memory.saved + std::max({2 * hidden, 3 * query - row - 3 * hidden,
                                             hidden + weight, summed - 3 * hidden + 2 * row});
  if (slice_.place.is_whole()) return memory;
  add_widened_memory(memory, shape,
                     {.width = sizes.width,
                      .inner = slice_.intermediate,
                      .largest = std::max(slice_.intermediate, slice_.heads * sizes.head_dim),
                      .whole_rows = slice_.splits_kv ? 0 : sizes.kv_heads * sizes.head_dim});
  return memory;
}

at::Tensor LlamaHead::forward(const at::Tensor& x, const BlockContext& context) {
  const at::Tensor normed = rows_.rms_norm(x, context.use(ids_[0]), slice_.whole.norm_epsilon);
  return token_losses(normed, context.use(ids_[1]), slice_.vocab, rows_, context);
}

BlockMemory LlamaHead::memory(const BatchShape& shape) const {
  return losses_memory(shape, slice_.whole.width, slice_.vocab, rows_);
}

}  // namespace dtrain::model::llama
