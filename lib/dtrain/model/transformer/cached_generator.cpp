#include "dtrain/model/transformer/cached_generator.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>

#include <algorithm>

#include "dtrain/base/error.h"

namespace dtrain::model {
namespace {

constexpr std::int64_t kChunk = 128;  // positions of a prompt that are computed at once

}  // namespace

CachedGenerator::CachedGenerator(const CacheSizes& sizes, std::int64_t vocab,
                                 const param::Arena& weights)
    : layers_(sizes.layers), vocab_(vocab), cache_(sizes, weights.flat().options()) {
  for (const at::Tensor& weight : weights.views()) weights_.push_back(weight.detach());
}

std::int64_t CachedGenerator::prompt_bytes(const config::ModelConfig& config, at::ScalarType dtype,
                                           std::int64_t prompt) {
  return KeyValueCache::attention_bytes(
      {.heads = config.heads, .count = std::min(kChunk, prompt), .length = prompt}, dtype);
}

void CachedGenerator::check_token(std::int64_t token) const {
  DTRAIN_CHECK(token >= 0 && token < vocab_, "token {}", token);
}

// Begins the positions of these tokens and returns the last layer's output.
at::Tensor CachedGenerator::run(const at::Tensor& ids) {
  at::Tensor x = embed(ids, cache_.begin_positions(ids.numel()));
  for (std::int64_t layer = 0; layer < layers_; ++layer) {
    x = apply_layer(static_cast<std::size_t>(layer), x);
  }
  return x;
}

const at::Tensor& CachedGenerator::read_prompt(std::span<const std::int64_t> tokens) {
  if (tokens.size() == 1) return step(tokens.front());
  const at::NoGradGuard no_grad;
  DTRAIN_CHECK(!tokens.empty());
  for (const std::int64_t token : tokens) check_token(token);
  const auto total = std::ssize(tokens);
  cache_.reserve(total);
  const at::Tensor ids =
      at::tensor(c10::ArrayRef<std::int64_t>(tokens.data(), tokens.size()), at::kLong)
          .to(weights_.front().device());
  at::Tensor x;
  for (std::int64_t begin = 0; begin < total; begin += kChunk) {
    x = run(ids.narrow(0, begin, std::min(kChunk, total - begin)));
  }
  logits_ = predict(x.select(0, -1));
  return logits_;
}

const at::Tensor& CachedGenerator::step(std::int64_t token) {
  const at::NoGradGuard no_grad;
  check_token(token);
  logits_ = predict(run(at::scalar_tensor(token, weights_.front().options().dtype(at::kLong))));
  return logits_;
}

}  // namespace dtrain::model
