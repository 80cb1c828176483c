#include "dtrain/base/elementary.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <numbers>

#include "dtrain/base/error.h"

namespace dtrain::base {
namespace {

// ln 2 and pi/2 in two parts. The first ends in zeros, so its product with a small whole number is
// exact.
constexpr double kLn2High = 0x1.62e42feep-1;
constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
constexpr double kHalfPiHigh = 0x1.921fb544p0;
constexpr double kHalfPiLow = 0x1.0b4611a626331p-34;

// c[0] + z (c[1] + z (c[2] + ...)).
template <std::size_t n>
double polynomial(const std::array<double, n>& c, double z) {
  double sum = c[n - 1];
  for (std::size_t k = n - 1; k-- > 0;) sum = sum * z + c[k];
  return sum;
}

// sign^k / (first + step*k)! for k from 0.
template <std::size_t n>
constexpr std::array<double, n> inverse_factorials(int first, int step, int sign) {
  std::array<double, n> result{};
  for (std::size_t k = 0; k < n; ++k) {
    double factorial = 1;  // exact up to 18!
    const int last = first + step * static_cast<int>(k);
    for (int i = 2; i <= last; ++i) factorial *= i;
    result[k] = (sign < 0 && k % 2 == 1 ? -1 : 1) / factorial;
  }
  return result;
}

// 2 / (3 + 2k), of the series of ln((1 + s) / (1 - s)) without its first term.
template <std::size_t n>
constexpr std::array<double, n> logarithm_terms() {
  std::array<double, n> result{};
  for (std::size_t k = 0; k < n; ++k) result[k] = 2.0 / (3.0 + 2.0 * static_cast<double>(k));
  return result;
}

}  // namespace

SineCosine sine_cosine(double angle) {
  static constexpr auto kSine = inverse_factorials<8>(3, 2, -1);    // from r³; r³ has 1/6, minus
  static constexpr auto kCosine = inverse_factorials<7>(4, 2, -1);  // from r⁴
  DTRAIN_CHECK(angle >= 0 && angle <= 6.5, "angle {}", angle);
  const double quadrant = std::floor(angle * (2 / std::numbers::pi) + 0.5);
  const double r = (angle - quadrant * kHalfPiHigh) - quadrant * kHalfPiLow;  // |r| <= pi/4
  const double z = r * r;
  const double sine = r - r * z * polynomial(kSine, z);
  // 1 - z/2 rounds; what it drops is added to the small terms.
  const double half = 0.5 * z;
  const double one = 1 - half;
  const double cosine = one + (((1 - one) - half) + z * z * polynomial(kCosine, z));
  switch (static_cast<int>(quadrant) % 4) {
    case 0:
      return {sine, cosine};
    case 1:
      return {cosine, -sine};
    case 2:
      return {-sine, -cosine};
    default:
      return {-cosine, sine};
  }
}

double power_of_two(double x) {
  static constexpr auto kTerms = inverse_factorials<14>(2, 1, 1);  // from r²
  DTRAIN_CHECK(std::abs(x) <= 1000, "exponent {}", x);
  const double whole = std::floor(x + 0.5);
  const double part = x - whole;  // exact, |part| <= 1/2
  const double r = part * std::numbers::ln2;
  return std::ldexp(1 + (r + r * r * polynomial(kTerms, r)), static_cast<int>(whole));
}

double logarithm(double x) {
  static constexpr auto kTerms = logarithm_terms<12>();  // from s³
  DTRAIN_CHECK(x > 0, "logarithm of {}", x);
  int exponent = 0;
  double mantissa = std::frexp(x, &exponent);  // [1/2, 1)
  if (mantissa < std::numbers::sqrt2 / 2) {
    mantissa *= 2;
    --exponent;
  }
  const double f = mantissa - 1;
  const double s = f / (2 + f);
  const double z = s * s;
  // ln(1 + f) = 2s + s³(...), with 2s = f - s f so that f, which is exact, leads.
  const double rest = s * z * polynomial(kTerms, z) - s * f;
  return exponent * kLn2High + (f + (rest + exponent * kLn2Low));
}

}  // namespace dtrain::base
