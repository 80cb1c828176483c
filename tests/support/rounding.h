// How far results may be off through rounding: from a format's precision and the number of
// roundings, never from what one CPU computed.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>

namespace dtrain::testing {

/// The largest relative error of rounding to the nearest number of this dtype.
inline double unit_roundoff(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return 0x1p-53;
    case at::kFloat:
      return 0x1p-24;
    case at::kHalf:
      return 0x1p-11;
    case at::kBFloat16:
      return 0x1p-8;
    default:
      throw std::invalid_argument("not a floating-point dtype");
  }
}

/// The largest relative error after `count` roundings, whatever they are. Of a sum of `count`
/// products, added in any order, with fused multiply-adds or without: relative to the sum of the
/// products' magnitudes.
///
/// Source: Higham, Accuracy and Stability of Numerical Algorithms (2002), lemma 3.1 and section 3.5.
inline double rounding_bound(at::ScalarType dtype, double count) {
  const double sum = count * unit_roundoff(dtype);
  if (sum >= 0.5) throw std::invalid_argument("so many roundings leave no digit");
  return sum / (1 - sum);
}

/// The relative error after `count` roundings that are independent of each other: it grows by the
/// root of their number.
///
/// Source: Higham and Mary, A New Approach to Probabilistic Rounding Error Analysis (2019).
inline double independent_rounding_bound(at::ScalarType dtype, double count) {
  return std::sqrt(count) * unit_roundoff(dtype);
}

/// `values`, each off by the share `relative` of itself, up or down at random.
inline at::Tensor disturbed(const at::Tensor& values, double relative, std::uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const at::Tensor signs = at::randint(0, 2, values.sizes(), generator, at::kDouble).mul(2).sub(1);
  return values * (1 + relative * signs).to(values.scalar_type());
}

/// The condition of a computation through all that happens in it, ReLUs that flip included: float64
/// runs whose inputs are disturbed by as much as `count` roundings of `dtype` sum up to.
///
/// Such a run's difference from the undisturbed one is what a run in `dtype` may differ by, times
/// kMargin: a difference is random, and few draws estimate its width.
struct Disturbance {
  static constexpr std::uint64_t kDraws = 3;
  static constexpr double kMargin = 2;

  Disturbance(at::ScalarType dtype, double count)
      : relative(independent_rounding_bound(dtype, count)) {
    // float64's own rounding would blur what it does: a larger one does as much more.
    if (dtype != at::kDouble) return;
    relative *= kEnlarged;
    scale /= kEnlarged;
  }

  double relative;         ///< of each input
  double scale = kMargin;  ///< what a difference is multiplied by to be a bound

 private:
  static constexpr double kEnlarged = 0x1p20;
};

/// By name the most that disturbed runs are off by, as a bound. errors(relative, draw) gives the
/// errors, by name, of a run whose inputs are off by that share.
template <typename Errors>
std::map<std::string, double> bounds_of(const Disturbance& disturbance, const Errors& errors) {
  std::map<std::string, double> bounds;
  for (std::uint64_t draw = 1; draw <= Disturbance::kDraws; ++draw) {
    for (const auto& [name, error] : errors(disturbance.relative, draw)) {
      bounds[name] = std::max(bounds[name], error * disturbance.scale);
    }
  }
  return bounds;
}

}  // namespace dtrain::testing
