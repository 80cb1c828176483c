#include "dtrain/model/llama/internal/rotary.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/where.h>

#include <numbers>

#include "dtrain/model/vector_math.h"

namespace dtrain::model::llama {
namespace {

// Source: Llama 3's release; a linear blend between the two limits.
at::Tensor scaled_as_llama3(const at::Tensor& frequencies,
                            const config::llama::RopeSettings& rope) {
  const auto original = static_cast<double>(rope.original);
  const at::Tensor wavelength = 2 * std::numbers::pi / frequencies;
  const at::Tensor slow = frequencies / rope.factor;
  const at::Tensor blend =
      (original / wavelength - rope.low_frequency) / (rope.high_frequency - rope.low_frequency);
  const at::Tensor between = (1 - blend) * slow + blend * frequencies;
  const at::Tensor scaled = at::where(wavelength > original / rope.low_frequency, slow, between);
  return at::where(wavelength < original / rope.high_frequency, frequencies, scaled);
}

}  // namespace

at::Tensor rotary_frequencies(const config::llama::RopeSettings& rope, std::int64_t head_dim) {
  using Scaling = config::llama::RopeScaling;
  const auto size = static_cast<double>(head_dim);
  const at::Tensor exponent = at::arange(0, head_dim, 2, at::kFloat) / size;
  const at::Tensor frequencies = at::pow(rope.theta, exponent).reciprocal();
  switch (rope.scaling) {
    case Scaling::none:
      return frequencies;
    case Scaling::linear:
      return frequencies / rope.factor;
    case Scaling::llama3:
      return scaled_as_llama3(frequencies, rope);
  }
  return frequencies;
}

RotaryTable rotary_table(const at::Tensor& frequencies, std::int64_t begin, std::int64_t end,
                         const at::TensorOptions& options) {
  warm_up_vector_math();
  const at::Tensor angles = at::outer(at::arange(begin, end, at::kFloat), frequencies);
  return {.cosine = angles.cos().to(options), .sine = angles.sin().to(options)};
}

const RotaryTable& RotaryTables::table(std::int64_t length, const at::TensorOptions& options) {
  const at::Tensor& cosine = table_.cosine;
  const bool fits = cosine.defined() && cosine.size(0) == length &&
                    cosine.dtype() == options.dtype() && cosine.device() == options.device();
  if (!fits) table_ = rotary_table(rotary_frequencies(rope_, head_dim_), 0, length, options);
  return table_;
}

}  // namespace dtrain::model::llama
