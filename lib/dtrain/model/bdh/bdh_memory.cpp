// Predicts the memory of a BDH's blocks from what their operations save and make. Each line names
// its tensors as bdh_blocks.cpp does, and counts what this rank holds of them.
#include <algorithm>

#include "dtrain/model/bdh/bdh_blocks.h"

namespace dtrain::model::bdh {
namespace {

std::int64_t size_of(at::ScalarType dtype) {
  return static_cast<std::int64_t>(c10::elementSize(dtype));
}

// Statistics, losses and logits are never below float32.
std::int64_t wide_size(at::ScalarType dtype) { return std::max<std::int64_t>(4, size_of(dtype)); }

}  // namespace

BlockMemory BdhEmbedding::memory(const BatchShape& shape) const {
  const std::int64_t low = size_of(shape.dtype);
  const std::int64_t wide = wide_size(shape.dtype);
  const std::int64_t row = shape.rows() * part_.whole.width;
  const std::int64_t rows = row * wide;
  const std::int64_t statistics = 2 * shape.rows() * wide;
  const std::int64_t normed = low == wide ? 0 : row * wide;  // before it is rounded
  const std::int64_t weight = part_.vocab * part_.whole.width * wide;
  BlockMemory memory{.output = row * low, .saved = rows + statistics};
  // A split vocabulary takes the rows looked up here, and a copy without those of other ranks.
  const std::int64_t looked_up = part_.splits_vocab() ? 2 * rows : 0;
  memory.forward = memory.saved + std::max(looked_up, normed + memory.output);
  memory.forward_without_graph = memory.forward;
  memory.backward = memory.saved + 2 * rows + weight + (low == wide ? 0 : weight / 2);
  return memory;
}

BlockMemory BdhLevel::memory(const BatchShape& shape) const {
  const std::int64_t low = size_of(shape.dtype);
  const std::int64_t wide = wide_size(shape.dtype);
  const bool is_half = shape.dtype == at::kHalf;
  const std::int64_t rows = shape.rows();
  const std::int64_t neurons = rows * part_.all_neurons() * low;  // xs, q, ys, gated: each
  const std::int64_t per_head = rows * part_.heads * part_.whole.width;
  const std::int64_t row = rows * part_.whole.width * low;
  const std::int64_t weight = part_.all_neurons() * part_.whole.width * low;
  // float16's scores meet their values in float32, and its table is scaled anew at each level.
  const std::int64_t attention = is_half ? wide : low;
  const std::int64_t table = is_half ? shape.length * part_.neurons * wide : 0;
  const std::int64_t low_scores = rows * part_.heads * shape.length * low;
  const std::int64_t scores = rows * part_.heads * shape.length * attention;
  const std::int64_t rounded = is_half ? low_scores : 0;
  const std::int64_t attended = per_head * attention;
  // A single head reads its input in place.
  const std::int64_t values = part_.heads > 1 || is_half ? attended : 0;
  const std::int64_t normed = per_head * low;
  const std::int64_t statistics = 2 * rows * (part_.heads + 2) * wide;
  const std::int64_t dropped = shape.training && part_.whole.dropout > 0 ? neurons : 0;
  // Sums over ranks are made in a copy, in float32 for float16. Ranks that share a head multiply
  // float16's gated neurons in float32.
  const bool is_shared = part_.ranks_per_head > 1;
  const std::int64_t summed = part_.place.is_whole() ? 0 : 2 * rows * part_.whole.width * attention;
  const std::int64_t head_sum = is_shared ? attended : 0;
  const std::int64_t widened_gate = is_shared && is_half ? neurons + 2 * weight : 0;

  BlockMemory memory{.output = row};
  const std::int64_t attention_saved = scores + values + attended + normed + table + statistics;
  memory.saved = 4 * neurons + widened_gate + attention_saved + 2 * row;  // decoded, input + y
  memory.forward = memory.saved + std::max({dropped, normed, summed}) + row + memory.output;
  const std::int64_t attending = 2 * neurons + rounded + attention_saved + head_sum;
  const std::int64_t gating = 3 * neurons + widened_gate + std::max(dropped, normed) + normed;
  memory.forward_without_graph = std::max(attending, gating) + 2 * row;
  // The gradients of the input by its two ways.
  const std::int64_t ways = 2 * row + summed;
  const std::int64_t at_decoder = 5 * neurons + 2 * widened_gate + attention_saved + weight;
  const std::int64_t at_gate = 6 * neurons + attention_saved;  // xs, q, ys, three gradients
  const std::int64_t at_scores = 3 * neurons + 2 * scores + rounded + values + 2 * attended + table;
  const std::int64_t at_gram = 4 * neurons + 3 * low_scores + table;
  // xs, q and the gradient of xs; encoder_v's comes transposed and is copied.
  const std::int64_t at_encoder = 3 * neurons + attention_saved + 2 * weight;
  memory.backward = std::max({at_decoder, at_gate, at_encoder, at_scores, at_gram}) + ways;
  return memory;
}

BlockMemory BdhHead::memory(const BatchShape& shape) const {
  const std::int64_t low = size_of(shape.dtype);
  const std::int64_t wide = wide_size(shape.dtype);
  const std::int64_t logits = shape.rows() * part_.vocab * wide;
  const std::int64_t rounded = low == wide ? 0 : shape.rows() * part_.vocab * low;
  const std::int64_t weight = part_.vocab * part_.whole.width * low;
  BlockMemory memory{.output = shape.rows() * wide, .saved = logits};  // of the log-softmax
  memory.forward = 2 * logits + memory.output;
  memory.forward_without_graph = memory.forward;
  // The gradients of the log-softmax's output and input, or of the product.
  const std::int64_t at_softmax = 2 * logits;
  const std::int64_t at_product =
      (rounded == 0 ? logits : rounded) + shape.rows() * part_.whole.width * low + weight;
  memory.backward = memory.saved + std::max(at_softmax, at_product);
  return memory;
}

}  // namespace dtrain::model::bdh
