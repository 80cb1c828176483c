#include "dtrain/model/transformer/key_value_cache.h"

#include <ATen/ops/bmm.h>
#include <ATen/ops/full.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "dtrain/base/error.h"
#include "dtrain/model/tensor_axis.h"
#include "dtrain/param/arena.h"

namespace dtrain::model {
namespace {

constexpr std::int64_t kFirstCapacity = 64;

// Returns a copy of `old` (K, positions, d) with room for `capacity` positions.
at::Tensor grown(const at::Tensor& old, std::int64_t capacity) {
  const at::Tensor larger = at::zeros({old.size(0), capacity, old.size(2)}, old.options());
  larger.narrow(1, 0, old.size(1)).copy_(old);
  return larger;
}

}  // namespace

KeyValueCache::KeyValueCache(const CacheSizes& sizes, const at::TensorOptions& options)
    : sizes_(sizes) {
  const at::Tensor none = at::zeros({sizes.heads, 0, sizes.head_dim}, options);
  layers_.assign(static_cast<std::size_t>(sizes.layers), {.keys = none, .values = none});
}

std::int64_t KeyValueCache::capacity_for(std::int64_t positions, std::int64_t max_positions) {
  std::int64_t capacity = kFirstCapacity;
  while (capacity < positions) capacity *= 2;
  return std::min(capacity, max_positions);
}

std::int64_t KeyValueCache::bytes(const CacheSizes& sizes, std::int64_t positions,
                                  at::ScalarType dtype) {
  const std::int64_t capacity = capacity_for(positions, sizes.max_positions);
  return param::bytes_of(2 * sizes.layers * sizes.heads * sizes.head_dim * capacity, dtype);
}

std::int64_t KeyValueCache::attention_bytes(const QuerySizes& queries, at::ScalarType dtype) {
  const bool is_widened = at::isReducedFloatingType(dtype);
  const auto wide = static_cast<std::int64_t>(c10::elementSize(is_widened ? at::kFloat : dtype));
  const auto narrow = static_cast<std::int64_t>(is_widened ? c10::elementSize(dtype) : 0);
  const std::int64_t mask = queries.count * queries.length;
  // Scores, their softmax, and its copy in a narrow dtype.
  return queries.heads * mask * (2 * wide + narrow) + mask * wide;
}

void KeyValueCache::reserve(std::int64_t count) {
  const std::int64_t length = length_ + count;
  if (length > sizes_.max_positions) {
    base::fail(base::ErrorKind::usage,
               "position {} exceeds the model's maximum of {} positions; use a shorter prompt or "
               "fewer tokens",
               length - 1, sizes_.max_positions);
  }
  if (length <= capacity_) return;
  capacity_ = capacity_for(length, sizes_.max_positions);
  for (Layer& layer : layers_) {
    layer.keys = grown(layer.keys, capacity_);
    layer.values = grown(layer.values, capacity_);
  }
}

std::int64_t KeyValueCache::begin_positions(std::int64_t count) {
  reserve(count);
  const std::int64_t first = length_;
  length_ += count;
  if (count > 1) {
    const at::Tensor none = widened(layers_.front().keys.narrow(1, 0, 0));
    mask_ = at::full({count, length_}, -std::numeric_limits<double>::infinity(), none.options())
                .triu_(first + 1);
  }
  return first;
}

at::Tensor KeyValueCache::attend(std::size_t layer, const at::Tensor& query, const at::Tensor& key,
                                 const at::Tensor& value) {
  const Layer& cache = layers_[layer];
  const std::int64_t heads = query.size(0);
  const std::int64_t count = query.size(1);
  cache.keys.narrow(1, length_ - count, count).copy_(key);
  cache.values.narrow(1, length_ - count, count).copy_(value);

  const at::Tensor grouped = query.reshape({sizes_.heads, -1, sizes_.head_dim});  // (K, H/K*C, d)
  const at::Tensor keys = cache.keys.narrow(1, 0, length_);
  const at::Tensor values = cache.values.narrow(1, 0, length_);
  const double scale = 1 / std::sqrt(static_cast<double>(sizes_.head_dim));
  // Scaled before the product, which may exceed float16's range.
  const at::Tensor scores = widened(at::bmm(grouped.mul(scale), keys.mT()));  // (K, H/K*C, T)
  if (count > 1) scores.view({heads, count, -1}).add_(mask_);
  const at::Tensor attended = at::bmm(at::softmax(scores, -1).to(values.scalar_type()), values);
  return attended.view({heads, count, -1}).transpose(0, 1).reshape({count, -1});
}

}  // namespace dtrain::model
