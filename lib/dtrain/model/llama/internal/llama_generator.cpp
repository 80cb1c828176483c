#include "dtrain/model/llama/internal/llama_generator.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "dtrain/base/error.h"
#include "dtrain/model/tensor_axis.h"

namespace dtrain::model::llama {
namespace {

constexpr std::int64_t kFirstCapacity = 64;
constexpr std::int64_t kChunk = 128;  // positions of a prompt that are computed at once

// Returns a copy of `old` (K, positions, d) with room for `capacity` positions.
at::Tensor grown(const at::Tensor& old, std::int64_t capacity) {
  const at::Tensor larger = at::zeros({old.size(0), capacity, old.size(2)}, old.options());
  larger.narrow(1, 0, old.size(1)).copy_(old);
  return larger;
}

}  // namespace

std::int64_t cache_capacity(std::int64_t positions, std::int64_t max_positions) {
  std::int64_t capacity = kFirstCapacity;
  while (capacity < positions) capacity *= 2;
  return std::min(capacity, max_positions);
}

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

// Checks that `tokens` may come next.
void LlamaGenerator::check_tokens(std::span<const std::int64_t> tokens) const {
  for (const std::int64_t token : tokens) {
    DTRAIN_CHECK(token >= 0 && token < sizes_.vocab, "token {}", token);
  }
  const std::int64_t last = position_ + std::ssize(tokens) - 1;
  if (last >= max_positions_) {
    base::fail(base::ErrorKind::usage,
               "position {} exceeds the model's maximum of {} positions; use a shorter prompt or "
               "fewer tokens",
               last, max_positions_);
  }
}

// Makes room for a sequence of this length.
void LlamaGenerator::reserve(std::int64_t positions) {
  if (positions <= capacity_) return;
  capacity_ = cache_capacity(positions, max_positions_);
  for (Cache& cache : caches_) {
    cache.keys = grown(cache.keys, capacity_);
    cache.values = grown(cache.values, capacity_);
  }
}

// x (C, D), or (D) for C = 1, -> (heads, C, d)
at::Tensor LlamaGenerator::project(const at::Tensor& x, param::ParameterId weight,
                                   const std::optional<param::ParameterId>& bias) const {
  return at::linear(x, read(weight), bias ? read(*bias) : at::Tensor())
      .view({x.numel() / sizes_.width, -1, sizes_.head_dim})
      .transpose(0, 1);
}

at::Tensor LlamaGenerator::positioned(const at::Tensor& heads,
                                      const std::optional<param::ParameterId>& norm) const {
  return rotate_halves(norm ? rms_norm(heads, read(*norm), sizes_.norm_epsilon) : heads, table_);
}

// x (C, D), or (D) for C = 1: the positions from position_ on.
at::Tensor LlamaGenerator::attend(const LayerParameters& ids, Cache& cache, const at::Tensor& x) {
  const std::int64_t count = x.numel() / sizes_.width;
  const at::Tensor normed = rms_norm(x, read(ids.input_norm), sizes_.norm_epsilon);
  const at::Tensor query =
      positioned(project(normed, ids.query, ids.query_bias), ids.query_norm);  // (H, C, d)
  cache.keys.narrow(1, position_, count)
      .copy_(positioned(project(normed, ids.key, ids.key_bias), ids.key_norm));
  cache.values.narrow(1, position_, count).copy_(project(normed, ids.value, ids.value_bias));

  const at::Tensor grouped = query.view({sizes_.kv_heads, -1, sizes_.head_dim});  // (K, H/K*C, d)
  const at::Tensor keys = cache.keys.narrow(1, 0, position_ + count);
  const at::Tensor values = cache.values.narrow(1, 0, position_ + count);
  const double scale = 1 / std::sqrt(static_cast<double>(sizes_.head_dim));
  // Scaled before the product, which may exceed float16's range.
  const at::Tensor scores = widened(at::bmm(grouped.mul(scale), keys.mT()));  // (K, H/K*C, T)
  if (count > 1) scores.view({sizes_.heads, count, -1}).add_(mask_);
  const at::Tensor attended = at::bmm(at::softmax(scores, -1).to(values.scalar_type()), values);
  const at::Tensor bias = ids.output_bias ? read(*ids.output_bias) : at::Tensor();
  std::vector<std::int64_t> joined = x.sizes().vec();
  joined.back() = -1;
  const at::Tensor heads = attended.view({sizes_.heads, count, -1}).transpose(0, 1);  // (C, H, d)
  return at::linear(heads.reshape(joined), read(ids.output), bias);
}

at::Tensor LlamaGenerator::transform(const LayerParameters& ids, const at::Tensor& x) const {
  const at::Tensor normed = rms_norm(x, read(ids.attended_norm), sizes_.norm_epsilon);
  const at::Tensor gate = at::linear(normed, read(ids.gate));
  const at::Tensor up = at::linear(normed, read(ids.up));
  return at::linear(swiglu(gate, up), read(ids.down));
}

// Runs the layers on the embedded tokens of the next `count` positions: x (C, D), or (D) for one.
at::Tensor LlamaGenerator::run(at::Tensor x, std::int64_t count) {
  const std::int64_t end = position_ + count;
  table_ = rotary_table(frequencies_, position_, end, x.options());
  if (count > 1) {
    mask_ = at::full({count, end}, -std::numeric_limits<double>::infinity(), widened(x).options())
                .triu_(position_ + 1);
  }
  for (std::size_t layer = 0; layer < caches_.size(); ++layer) {
    const LayerParameters& ids = parameters_.layers[layer];
    x = x + attend(ids, caches_[layer], x);
    x = x + transform(ids, x);
  }
  position_ = end;
  return x;
}

// x (D) -> logits (V)
const at::Tensor& LlamaGenerator::predict(const at::Tensor& x) {
  const at::Tensor normed = rms_norm(x, read(parameters_.norm), sizes_.norm_epsilon);
  logits_ = widened(at::linear(normed, read(parameters_.head)));
  return logits_;
}

const at::Tensor& LlamaGenerator::read_prompt(std::span<const std::int64_t> tokens) {
  if (tokens.size() == 1) return step(tokens.front());
  const at::NoGradGuard no_grad;
  DTRAIN_CHECK(position_ == 0 && !tokens.empty(), "position {}", position_);
  check_tokens(tokens);
  const auto total = std::ssize(tokens);
  reserve(total);
  const at::Tensor& embed = read(parameters_.embed);
  const at::Tensor ids =
      at::tensor(c10::ArrayRef<std::int64_t>(tokens.data(), tokens.size()), at::kLong)
          .to(embed.device());
  at::Tensor x;
  while (position_ < total) {
    const std::int64_t count = std::min(kChunk, total - position_);
    x = run(embed.index_select(0, ids.narrow(0, position_, count)), count);
  }
  return predict(x.select(0, -1));
}

const at::Tensor& LlamaGenerator::step(std::int64_t token) {
  const at::NoGradGuard no_grad;
  check_tokens({&token, 1});
  reserve(position_ + 1);
  return predict(run(read(parameters_.embed).select(0, token), 1));
}

}  // namespace dtrain::model::llama
