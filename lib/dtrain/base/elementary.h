// Elementary functions whose results are bit-identical on every CPU. The C library and vector
// libraries select their implementations by CPU, so their results differ.
//
// Each function is a float64 polynomial, compiled without FMA contraction, with an error below 1.5
// ulp.
#pragma once

namespace dtrain::base {

/// The sine and cosine of an angle.
struct SineCosine {
  double sine = 0;
  double cosine = 0;
};

/// Units: angle in radians, in [0, 6.5].
[[nodiscard]] SineCosine sine_cosine(double angle);

/// 2 to the power of x, for |x| <= 1000.
[[nodiscard]] double power_of_two(double x);

/// The natural logarithm of x > 0, not subnormal.
[[nodiscard]] double logarithm(double x);

}  // namespace dtrain::base
