#include "dtrain/model/llama/internal/llama_generator.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "dtrain/base/error.h"
#include "dtrain/model/tensor_axis.h"

namespace dtrain::model::llama {
namespace {

constexpr std::int64_t kFirstCapacity = 64;

// Returns a copy of `old` (K, positions, d) with room for `capacity` positions.
at::Tensor grown(const at::Tensor& old, std::int64_t capacity) {
  const at::Tensor larger = at::zeros({old.size(0), capacity, old.size(2)}, old.options());
  larger.narrow(1, 0, old.size(1)).copy_(old);
  return larger;
}

}  // namespace

LlamaGenerator::LlamaGenerator(const LlamaSizes& sizes, std::int64_t max_positions,
                               const param::Arena& weights)
    : sizes_(sizes),
      max_positions_(max_positions),
      parameters_(parameters_of(slice_of(sizes, {}))),
      frequencies_(rotary_frequencies(sizes.rope, sizes.head_dim)) {
  for (const param::ParameterId id : parameters_.specs.ids()) {
    weights_.push_back(weights.view(id).detach());
  }
  const at::Tensor none = at::zeros({sizes.kv_heads, 0, sizes.head_dim}, weights.flat().options());
  caches_.assign(static_cast<std::size_t>(sizes.layers), {.keys = none, .values = none});
}

// Makes room for the next position.
void LlamaGenerator::reserve() {
  if (position_ < capacity_) return;
  capacity_ = std::min(max_positions_, std::max(kFirstCapacity, 2 * capacity_));
  for (Cache& cache : caches_) {
    cache.keys = grown(cache.keys, capacity_);
    cache.values = grown(cache.values, capacity_);
  }
}

// x (D) -> (heads, 1, d)
at::Tensor LlamaGenerator::project(const at::Tensor& x, param::ParameterId weight,
                                   const std::optional<param::ParameterId>& bias) const {
  return at::linear(x, read(weight), bias ? read(*bias) : at::Tensor())
      .view({-1, 1, sizes_.head_dim});
}

at::Tensor LlamaGenerator::positioned(const at::Tensor& heads,
                                      const std::optional<param::ParameterId>& norm) const {
  return rotate_halves(norm ? rms_norm(heads, read(*norm), sizes_.norm_epsilon) : heads, table_);
}

at::Tensor LlamaGenerator::attend(const LayerParameters& ids, Cache& cache, const at::Tensor& x) {
  const at::Tensor normed = rms_norm(x, read(ids.input_norm), sizes_.norm_epsilon);
  const at::Tensor query =
      positioned(project(normed, ids.query, ids.query_bias), ids.query_norm);  // (H, 1, d)
  cache.keys.narrow(1, position_, 1)
      .copy_(positioned(project(normed, ids.key, ids.key_bias), ids.key_norm));
  cache.values.narrow(1, position_, 1).copy_(project(normed, ids.value, ids.value_bias));

  const at::Tensor grouped = query.view({sizes_.kv_heads, -1, sizes_.head_dim});  // (K, H/K, d)
  const at::Tensor keys = cache.keys.narrow(1, 0, position_ + 1);
  const at::Tensor values = cache.values.narrow(1, 0, position_ + 1);
  const double scale = 1 / std::sqrt(static_cast<double>(sizes_.head_dim));
  // Scaled before the product, which may exceed float16's range.
  const at::Tensor scores = widened(at::bmm(grouped.mul(scale), keys.mT()));  // (K, H/K, position)
  const at::Tensor attended = at::bmm(at::softmax(scores, -1).to(values.scalar_type()), values);
  const at::Tensor bias = ids.output_bias ? read(*ids.output_bias) : at::Tensor();
  return at::linear(attended.reshape({-1}), read(ids.output), bias);
}

at::Tensor LlamaGenerator::transform(const LayerParameters& ids, const at::Tensor& x) const {
  const at::Tensor normed = rms_norm(x, read(ids.attended_norm), sizes_.norm_epsilon);
  const at::Tensor gate = at::linear(normed, read(ids.gate));
  const at::Tensor up = at::linear(normed, read(ids.up));
  return at::linear(swiglu(gate, up), read(ids.down));
}

const at::Tensor& LlamaGenerator::step(std::int64_t token) {
  const at::NoGradGuard no_grad;
  DTRAIN_CHECK(token >= 0 && token < sizes_.vocab, "token {}", token);
  if (position_ >= max_positions_) {
    base::fail(base::ErrorKind::usage,
               "position {} exceeds the model's maximum of {} positions; use a shorter prompt or "
               "fewer tokens",
               position_, max_positions_);
  }
  reserve();
  at::Tensor x = read(parameters_.embed).select(0, token);
  table_ = rotary_table(frequencies_, position_, position_ + 1, x.options());
  for (std::size_t layer = 0; layer < caches_.size(); ++layer) {
    const LayerParameters& ids = parameters_.layers[layer];
    x = x + attend(ids, caches_[layer], x);
    x = x + transform(ids, x);
  }
  const at::Tensor normed = rms_norm(x, read(parameters_.norm), sizes_.norm_epsilon);
  logits_ = widened(at::linear(normed, read(parameters_.head)));
  ++position_;
  return logits_;
}

}  // namespace dtrain::model::llama
