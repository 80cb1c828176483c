#include "dtrain/model/gpt2/internal/gpt2_generator.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>

#include "dtrain/model/gpt2/internal/layer_norm.h"
#include "dtrain/model/tensor_axis.h"

namespace dtrain::model::gpt2 {

CacheSizes cache_sizes_of(const Gpt2Sizes& sizes) {
  return {.layers = sizes.layers,
          .heads = sizes.heads,
          .head_dim = sizes.head_dim(),
          .max_positions = sizes.positions};
}

Gpt2Generator::Gpt2Generator(const Gpt2Sizes& sizes, const param::Arena& weights)
    : CachedGenerator(cache_sizes_of(sizes), sizes.vocab, weights),
      sizes_(sizes),
      parameters_(parameters_of(slice_of(sizes, {}))) {}

at::Tensor Gpt2Generator::embed(const at::Tensor& ids, std::int64_t first) {
  const at::Tensor rows = at::embedding(read(parameters_.tokens), ids);
  return rows + read(parameters_.positions).narrow(0, first, ids.numel()).view(rows.sizes());
}

at::Tensor Gpt2Generator::normed(const WeightAndBias& ids, const at::Tensor& x) const {
  return layer_norm(x, read(ids.weight), bias_of(ids), sizes_.norm_epsilon);
}

at::Tensor Gpt2Generator::to_stream(const at::Tensor& x, const WeightAndBias& map) const {
  const at::Tensor product = at::matmul(x, read(map.weight));
  return map.bias ? product + read(*map.bias) : product;
}

at::Tensor Gpt2Generator::attend(std::size_t layer, const at::Tensor& x) {
  const LayerParameters& ids = parameters_.layers[layer];
  const at::Tensor packed = at::linear(normed(ids.attention_norm, x), read(ids.packed.weight),
                                       bias_of(ids.packed));  // (C, H*3*d)
  const at::Tensor heads = packed.view({-1, sizes_.heads, 3, sizes_.head_dim()}).transpose(0, 1);
  at::Tensor attended = cache().attend(layer, heads.select(2, 0), heads.select(2, 1),
                                       heads.select(2, 2));  // (C, H*d)
  if (x.dim() == 1) attended = attended.squeeze(0);
  return to_stream(attended, ids.output);
}

at::Tensor Gpt2Generator::transform(const LayerParameters& ids, const at::Tensor& x) const {
  const at::Tensor inner =
      at::linear(normed(ids.mlp_norm, x), read(ids.up.weight), bias_of(ids.up));  // (I)
  return to_stream(at::gelu(inner, "tanh"), ids.down);
}

at::Tensor Gpt2Generator::apply_layer(std::size_t layer, const at::Tensor& x) {
  const at::Tensor h = x + attend(layer, x);
  return h + transform(parameters_.layers[layer], h);
}

at::Tensor Gpt2Generator::predict(const at::Tensor& x) {
  return widened(at::linear(normed(parameters_.norm, x), read(parameters_.head)));
}

}  // namespace dtrain::model::gpt2
