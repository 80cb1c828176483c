#include "dtrain/model/gpt2/internal/gpt2_generator.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>

#include "dtrain/base/error.h"
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
    : sizes_(sizes),
      parameters_(parameters_of(slice_of(sizes, {}))),
      cache_(cache_sizes_of(sizes), weights.flat().options()) {
  for (const param::ParameterId id : parameters_.specs.ids()) {
    weights_.push_back(weights.view(id).detach());
  }
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
                                       bias_of(ids.packed));                   // (H*3*d)
  const at::Tensor maps = packed.view({sizes_.heads, -1, sizes_.head_dim()});  // (H, 3, d)
  const at::Tensor attended =
      cache_.attend(layer, maps.narrow(1, 0, 1), maps.narrow(1, 1, 1), maps.narrow(1, 2, 1));
  return to_stream(attended, ids.output);
}

at::Tensor Gpt2Generator::transform(const LayerParameters& ids, const at::Tensor& x) const {
  const at::Tensor inner =
      at::linear(normed(ids.mlp_norm, x), read(ids.up.weight), bias_of(ids.up));  // (I)
  return to_stream(at::gelu(inner, "tanh"), ids.down);
}

const at::Tensor& Gpt2Generator::step(std::int64_t token) {
  const at::NoGradGuard no_grad;
  DTRAIN_CHECK(token >= 0 && token < sizes_.vocab, "token {}", token);
  const std::int64_t position = cache_.begin_position();
  at::Tensor x =
      read(parameters_.tokens).select(0, token) + read(parameters_.positions).select(0, position);
  for (std::size_t layer = 0; layer < parameters_.layers.size(); ++layer) {
    x = x + attend(layer, x);
    x = x + transform(parameters_.layers[layer], x);
  }
  logits_ = widened(at::linear(normed(parameters_.norm, x), read(parameters_.head)));
  return logits_;
}

}  // namespace dtrain::model::gpt2
