// Bounds of rounding errors, derived from a dtype's precision and the number of roundings, not from
// the results of one CPU.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>

namespace dtrain::testing {

/// The unit roundoff of this dtype.
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

/// The worst-case relative error after `count` roundings. For a sum of `count` products, in any
/// order and fused or not, it is relative to the sum of the products' magnitudes.
///
/// Source: Higham, Accuracy and Stability of Numerical Algorithms (2002), lemma 3.1 and section
///         3.5.
inline double rounding_bound(at::ScalarType dtype, double count) {
  const double sum = count * unit_roundoff(dtype);
  if (sum >= 0.5) throw std::invalid_argument("so many roundings leave no digit");
  return sum / (1 - sum);
}

/// The expected relative error after `count` independent roundings, which grows with the
/// square root of their number.
///
/// Source: Higham and Mary, A New Approach to Probabilistic Rounding Error Analysis (2019).
inline double independent_rounding_bound(at::ScalarType dtype, double count) {
  return std::sqrt(count) * unit_roundoff(dtype);
}

/// Returns `values`, each perturbed by the fraction `relative`, up or down at random.
inline at::Tensor disturbed(const at::Tensor& values, double relative, std::uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const at::Tensor signs = at::randint(0, 2, values.sizes(), generator, at::kDouble).mul(2).sub(1);
  return values * (1 + relative * signs).to(values.scalar_type());
}

/// Estimates how a computation amplifies rounding errors, including ReLUs that switch, with float64
/// runs. Their inputs are perturbed by the accumulated error of `count` roundings of `dtype`.
///
/// The bound for a run in `dtype` is the largest difference of a perturbed run from the unperturbed
/// one, times kMargin, because differences are random and the number of draws is small.
struct Disturbance {
  static constexpr std::uint64_t kDraws = 3;
  static constexpr double kMargin = 2;

  Disturbance(at::ScalarType dtype, double count)
      : relative(independent_rounding_bound(dtype, count)) {
    // A smaller perturbation would be masked by float64's own rounding.
    if (dtype != at::kDouble) return;
    relative *= kEnlarged;
    scale /= kEnlarged;
  }

  double relative;         ///< relative perturbation of each input
  double scale = kMargin;  ///< factor from a difference to a bound

 private:
  static constexpr double kEnlarged = 0x1p20;
};

/// Returns bounds by name: the largest scaled error of perturbed runs. errors(relative, draw)
/// returns the errors, by name, of a run with inputs perturbed by the fraction `relative`.
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
