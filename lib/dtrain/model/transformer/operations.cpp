#include "dtrain/model/transformer/operations.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <fmt/format.h>

#include <algorithm>

#include "dtrain/model/dropout.h"
#include "dtrain/model/split_linear.h"

namespace dtrain::model {
namespace {

// The places of dropout in a layer, which number its masks.
enum class DropoutPlace : std::int64_t { attention = 0, mlp = 1 };
constexpr std::int64_t kDropoutsPerLayer = 2;

std::int64_t dropout_index(std::int64_t layer, DropoutPlace place) {
  return kDropoutsPerLayer * layer + static_cast<std::int64_t>(place);
}

// Memory of a norm and fused losses, which save the logits and allocate their gradient.
BlockMemory fused_losses_memory(const BatchShape& shape, std::int64_t width, std::int64_t vocab) {
  const std::int64_t low = size_of(shape.dtype);
  const std::int64_t row = shape.rows() * width * low;
  const std::int64_t logits = shape.rows() * vocab * low;
  const std::int64_t statistics = shape.rows() * wide_size(shape.dtype);
  BlockMemory memory{.output = statistics, .saved = logits + row + 3 * statistics};
  memory.forward = memory.saved + memory.output;
  memory.forward_without_graph = memory.forward;
  memory.backward = memory.saved + std::max(logits, row + vocab * width * low);
  return memory;
}

}  // namespace

std::string describe_kernels(config::Kernels kernels) {
  return kernels == config::Kernels::fused ? "fused; attention by LibTorch"
                                           : "plain; attention by LibTorch";
}

std::vector<ReportedValue> stream_values(const config::ModelConfig& config, std::int64_t rows,
                                         std::int64_t length) {
  const std::vector<std::int64_t> stream{rows, length, config.width};
  std::vector<ReportedValue> values{{"act.embed", stream}};
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    values.push_back({fmt::format("act.layer{}.out", layer), stream});
  }
  return values;
}

std::int64_t embedding_dropout_index(std::int64_t layers) { return kDropoutsPerLayer * layers; }

at::Tensor dropped(const at::Tensor& x, double probability, std::int64_t index,
                   const BlockContext& context) {
  if (!context.training || probability == 0) return x;
  const DropoutOffsets place{
      .seed = context.seed, .level = index, .first_sample = context.first_sample};
  return dropout(x.contiguous().unsqueeze(0), probability, place).squeeze(0);
}

at::Tensor residual_layer(const at::Tensor& x, const ResidualLayer& layer,
                          const BlockContext& context,
                          const std::function<at::Tensor(const at::Tensor&)>& attention,
                          const std::function<at::Tensor(const at::Tensor&)>& mlp) {
  const at::Tensor h = x + dropped(attention(x), layer.dropout,
                                   dropout_index(layer.index, DropoutPlace::attention), context);
  const at::Tensor out =
      h + dropped(mlp(h), layer.dropout, dropout_index(layer.index, DropoutPlace::mlp), context);
  context.report(fmt::format("act.layer{}.out", layer.index), out);
  return out;
}

at::Tensor embedded(const at::Tensor& weight, const at::Tensor& ids,
                    const VocabularySlice& vocabulary, const BlockContext& context) {
  TensorAxis whole;
  TensorAxis& axis = vocabulary.is_split() ? context.tensor_axis : whole;
  return axis.embedding(weight, ids, vocabulary.first).to(weight.scalar_type());
}

at::Tensor causal_attention(const at::Tensor& query, const at::Tensor& key,
                            const at::Tensor& value) {
  const at::Tensor attended =
      at::scaled_dot_product_attention(query, key, value, {}, 0.0, /*is_causal=*/true);
  return attended.transpose(1, 2).reshape(
      {query.size(0), query.size(2), query.size(1) * query.size(3)});
}

at::Tensor token_losses(const at::Tensor& normed, const at::Tensor& weight,
                        const VocabularySlice& vocabulary, const RowOperations& rows,
                        const BlockContext& context) {
  TensorAxis whole;
  TensorAxis& axis = vocabulary.is_split() ? context.tensor_axis : whole;
  const at::Tensor x = axis.replicated(normed).reshape({-1, normed.size(2)});  // (B*T, D)
  at::Tensor logits = column_linear(x, weight, {}, normed.scalar_type());      // (B*T, V/tp)
  const bool is_fused = rows.is_fused && !vocabulary.is_split();
  if (!is_fused) logits = widened(logits);
  if (context.tap) {
    context.report("logits",
                   widened(logits).view({normed.size(0), normed.size(1), vocabulary.size}));
  }
  const at::Tensor targets = context.targets.reshape(-1);
  const at::Tensor losses = vocabulary.is_split()
                                ? axis.cross_entropy(logits, targets, vocabulary.first)
                                : rows.cross_entropy(logits, targets);
  return losses.view({normed.size(0), normed.size(1)});
}

BlockMemory embedding_memory(const BatchShape& shape, std::int64_t width,
                             const VocabularySlice& vocabulary, bool has_dropout) {
  const std::int64_t low = size_of(shape.dtype);
  const std::int64_t wide = wide_size(shape.dtype);
  const std::int64_t row = shape.rows() * width;
  const std::int64_t weight = vocabulary.size * width * wide;
  const std::int64_t widened_weight = low == wide ? 0 : weight;
  const std::int64_t dropped = shape.training && has_dropout ? row * low : 0;
  const std::int64_t looked_up = vocabulary.is_split() ? row * wide : 0;
  BlockMemory memory{.output = row * low};
  memory.forward = std::max(widened_weight + row * wide, row * (wide + low) + dropped) + looked_up;
  if (low == wide) memory.forward = row * low + looked_up + dropped;
  memory.forward_without_graph = memory.forward;
  // The gradient of the looked-up rows, or at the end the weight's rounded one.
  const std::int64_t gradient = low == wide ? std::max(dropped, looked_up) : row * wide;
  memory.backward = weight + std::max(gradient, widened_weight / 2);
  return memory;
}

void add_widened_memory(BlockMemory& memory, const BatchShape& shape, const SplitLayer& layer) {
  if (shape.dtype != at::kHalf) return;
  const std::int64_t low = size_of(shape.dtype);
  const std::int64_t wide = wide_size(shape.dtype);
  const std::int64_t row = shape.rows() * layer.width;
  const std::int64_t inner = shape.rows() * layer.inner * wide;
  const std::int64_t weight = layer.largest * layer.width * wide;
  const std::int64_t product = std::max(inner + weight + row * wide, 2 * row * wide);
  const std::int64_t saved = 2 * row * (wide - low) + 2 * layer.whole_rows * layer.width * wide;
  memory.saved += saved;
  memory.forward += saved + product;
  memory.forward_without_graph += row * (wide - low) + product;
  memory.backward += saved + inner + weight + 2 * row * wide;
}

BlockMemory losses_memory(const BatchShape& shape, std::int64_t width,
                          const VocabularySlice& vocabulary, const RowOperations& rows) {
  if (rows.is_fused && !vocabulary.is_split()) {
    return fused_losses_memory(shape, width, vocabulary.size);
  }
  const std::int64_t low = size_of(shape.dtype);
  const std::int64_t wide = wide_size(shape.dtype);
  const std::int64_t row = shape.rows() * width * low;
  const std::int64_t logits = shape.rows() * vocabulary.size * wide;
  const std::int64_t rounded = low == wide ? 0 : shape.rows() * vocabulary.size * low;
  const std::int64_t weight = vocabulary.size * width * low;
  const std::int64_t statistics = shape.rows() * wide;
  BlockMemory memory{.output = shape.rows() * wide, .saved = logits + row + statistics};
  memory.forward = 2 * logits + row + statistics + memory.output;
  memory.forward_without_graph = memory.forward;
  const std::int64_t at_softmax = vocabulary.is_split() ? logits : 2 * logits;
  std::int64_t at_product = (rounded == 0 ? logits : rounded) + row + weight;
  if (vocabulary.is_split() && shape.dtype == at::kHalf) {  // column_linear: all in float32
    const std::int64_t wide_row = row / low * wide;
    memory.saved += wide_row - row;
    memory.forward += wide_row;
    memory.forward_without_graph = memory.forward;
    at_product = rounded + logits + wide_row + weight / low * wide;
  }
  memory.backward = memory.saved + std::max(at_softmax, at_product);
  return memory;
}

}  // namespace dtrain::model
