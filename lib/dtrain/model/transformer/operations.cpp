#include "dtrain/model/transformer/operations.h"

#include <ATen/ops/scaled_dot_product_attention.h>
#include <fmt/format.h>

#include <algorithm>

#include "dtrain/model/dropout.h"
#include "dtrain/model/split_linear.h"

namespace dtrain::model {
namespace {

constexpr std::int64_t kDropoutsPerLayer = 2;

}  // namespace

std::vector<ReportedValue> stream_values(const config::ModelConfig& config, std::int64_t rows,
                                         std::int64_t length) {
  const std::vector<std::int64_t> stream{rows, length, config.width};
  std::vector<ReportedValue> values{{"act.embed", stream}};
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    values.push_back({fmt::format("act.layer{}.out", layer), stream});
  }
  return values;
}

std::int64_t dropout_level(std::int64_t layer, DropoutPlace place) {
  return kDropoutsPerLayer * layer + static_cast<std::int64_t>(place);
}

std::int64_t embedding_dropout_level(std::int64_t layers) { return kDropoutsPerLayer * layers; }

at::Tensor dropped(const at::Tensor& x, double probability, std::int64_t level,
                   const BlockContext& context) {
  if (!context.training || probability == 0) return x;
  const DropoutOffsets place{
      .seed = context.seed, .level = level, .first_sample = context.first_sample};
  return dropout(x.contiguous().unsqueeze(0), probability, place).squeeze(0);
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
                        const VocabularySlice& vocabulary, const BlockContext& context) {
  TensorAxis whole;
  TensorAxis& axis = vocabulary.is_split() ? context.tensor_axis : whole;
  const at::Tensor rows = axis.replicated(normed).reshape({-1, normed.size(2)});  // (B*T, D)
  const at::Tensor logits =
      widened(column_linear(rows, weight, {}, normed.scalar_type()));  // (B*T, V/tp)
  context.report("logits", logits.view({normed.size(0), normed.size(1), vocabulary.size}));
  return axis.cross_entropy(logits, context.targets.reshape(-1), vocabulary.first)
      .view({normed.size(0), normed.size(1)});
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
                          const VocabularySlice& vocabulary) {
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
