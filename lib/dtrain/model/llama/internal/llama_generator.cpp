#include "dtrain/model/llama/internal/llama_generator.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>

#include <utility>

#include "dtrain/model/tensor_axis.h"

namespace dtrain::model::llama {

CacheSizes cache_sizes_of(const LlamaSizes& sizes, std::int64_t max_positions) {
  return {.layers = sizes.layers,
          .heads = sizes.kv_heads,
          .head_dim = sizes.head_dim,
          .max_positions = max_positions};
}

LlamaGenerator::LlamaGenerator(const LlamaSizes& sizes, std::int64_t max_positions,
                               const param::Arena& weights)
    : CachedGenerator(cache_sizes_of(sizes, max_positions), sizes.vocab, weights),
      sizes_(sizes),
      parameters_(parameters_of(slice_of(sizes, {}))),
      frequencies_(rotary_frequencies(sizes.rope, sizes.head_dim)) {}

at::Tensor LlamaGenerator::embed(const at::Tensor& ids, std::int64_t first) {
  const at::Tensor x = at::embedding(read(parameters_.embed), ids);
  table_ = rotary_table(frequencies_, first, first + ids.numel(), x.options());
  return x;
}

// x (C, D) or (D) -> (heads, C, d)
at::Tensor LlamaGenerator::project(const at::Tensor& x, param::ParameterId weight,
                                   const std::optional<param::ParameterId>& bias) const {
  return at::linear(x, read(weight), bias ? read(*bias) : at::Tensor())
      .view({x.numel() / sizes_.width, -1, sizes_.head_dim})
      .transpose(0, 1);
}

at::Tensor LlamaGenerator::positioned(const at::Tensor& heads,
                                      const std::optional<param::ParameterId>& norm) const {
  return rows_.rotate_halves(norm ? rows_.rms_norm(heads, read(*norm), sizes_.norm_epsilon) : heads,
                             table_);
}

at::Tensor LlamaGenerator::attend(std::size_t layer, const at::Tensor& x) {
  const LayerParameters& ids = parameters_.layers[layer];
  const at::Tensor normed = rows_.rms_norm(x, read(ids.input_norm), sizes_.norm_epsilon);
  const at::Tensor query = positioned(project(normed, ids.query, ids.query_bias), ids.query_norm);
  const at::Tensor key = positioned(project(normed, ids.key, ids.key_bias), ids.key_norm);
  const at::Tensor value = project(normed, ids.value, ids.value_bias);
  at::Tensor attended = cache().attend(layer, query, key, value);  // (C, H*d)
  if (x.dim() == 1) attended = attended.squeeze(0);
  const at::Tensor bias = ids.output_bias ? read(*ids.output_bias) : at::Tensor();
  return at::linear(attended, read(ids.output), bias);
}

at::Tensor LlamaGenerator::transform(const LayerParameters& ids, const at::Tensor& x) const {
  const at::Tensor normed = rows_.rms_norm(x, read(ids.attended_norm), sizes_.norm_epsilon);
  const at::Tensor gate = at::linear(normed, read(ids.gate));
  const at::Tensor up = at::linear(normed, read(ids.up));
  return at::linear(rows_.swiglu(gate, up), read(ids.down));
}

at::Tensor LlamaGenerator::apply_layer(std::size_t layer, const at::Tensor& x) {
  const at::Tensor h = x + attend(layer, x);
  return h + transform(parameters_.layers[layer], h);
}

at::Tensor LlamaGenerator::predict(const at::Tensor& x) {
  const at::Tensor normed = rows_.rms_norm(x, read(parameters_.norm), sizes_.norm_epsilon);
  return widened(at::linear(normed, read(parameters_.head)));
}

}  // namespace dtrain::model::llama
