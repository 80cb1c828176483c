#include "dtrain/param/initialise.h"

#include <ATen/ops/empty.h>

#include <array>
#include <cmath>
#include <numbers>

#include "dtrain/base/hash.h"
#include "dtrain/base/philox.h"

namespace dtrain::param {
namespace {

// Two normal values from two words; the half keeps the logarithm's argument above zero.
std::array<double, 2> box_muller(std::uint32_t a, std::uint32_t b) {
  constexpr double kScale = 1.0 / 4294967296.0;
  const double radius = std::sqrt(-2.0 * std::log((a + 0.5) * kScale));
  const double angle = 2.0 * std::numbers::pi * b * kScale;
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

}  // namespace

void initialise(const ParameterSpec& spec, std::uint64_t seed, const at::Tensor& storage) {
  const base::PhiloxKey key = base::philox_key(seed, base::RandomPurpose::initialisation);
  const std::uint64_t hash = base::hash_text(spec.name);
  const at::Tensor exported = at::empty(spec.export_shape(), at::TensorOptions().dtype(at::kFloat));
  float* out = exported.mutable_data_ptr<float>();
  const std::int64_t count = exported.numel();
  for (std::int64_t first = 0; first < count; first += 4) {
    const auto index = static_cast<std::uint64_t>(first / 4);
    const auto words =
        base::philox({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
                      static_cast<std::uint32_t>(hash), static_cast<std::uint32_t>(hash >> 32)},
                     key);
    const auto low = box_muller(words[0], words[1]);
    const auto high = box_muller(words[2], words[3]);
    const std::array<double, 4> values{low[0], low[1], high[0], high[1]};
    for (std::int64_t i = 0; i < 4 && first + i < count; ++i) {
      out[first + i] = static_cast<float>(values[static_cast<std::size_t>(i)] * spec.init_stddev);
    }
  }
  exported_view(spec, storage).copy_(exported);
}

}  // namespace dtrain::param
