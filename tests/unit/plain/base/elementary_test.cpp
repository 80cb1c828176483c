#include "dtrain/base/elementary.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <numbers>

#include "dtrain/base/error.h"

namespace dtrain::base::elementary_test {
namespace {

// The C library's long double functions are the oracle: 64 bits of mantissa, code of their own.

/// The difference in units of the last place of a float64 of this size.
double ulps(double found, long double expected) {
  const double unit = std::ldexp(1.0, std::ilogb(expected) - 52);
  return static_cast<double>(std::fabs(static_cast<long double>(found) - expected)) / unit;
}

/// Angles over the whole range, and those next to the zeros of sine and cosine.
template <typename Check>
void for_angles(Check check) {
  for (int i = 1; i <= 200'000; ++i) check(6.4 * i / 200'000);
  for (int quarter = 0; quarter <= 4; ++quarter) {
    auto angle = static_cast<float>(quarter * std::numbers::pi / 2);
    for (int i = 0; i < 2; ++i) angle = std::nextafter(angle, 0.0F);
    for (int i = 0; i < 5; ++i, angle = std::nextafter(angle, 7.0F)) check(angle);
  }
}

TEST_CASE("Sine and cosine are within 1.5 ulp of a long double's") {
  double worst = 0;
  for_angles([&](double angle) {
    if (angle == 0) return;
    const auto [sine, cosine] = sine_cosine(angle);
    worst = std::max(worst, ulps(sine, std::sin(static_cast<long double>(angle))));
    worst = std::max(worst, ulps(cosine, std::cos(static_cast<long double>(angle))));
  });
  INFO(worst);
  CHECK(worst < 1.5);
  CHECK(sine_cosine(0).sine == 0);
  CHECK(sine_cosine(0).cosine == 1);
}

TEST_CASE("Rounded to float32, sine and cosine are the float32 nearest to a long double's") {
  std::int64_t others = 0;
  for_angles([&](double wide) {
    const auto angle = static_cast<float>(wide);
    const auto [sine, cosine] = sine_cosine(angle);
    const auto exact = static_cast<long double>(angle);
    others += static_cast<float>(sine) != static_cast<float>(std::sin(exact));
    others += static_cast<float>(cosine) != static_cast<float>(std::cos(exact));
  });
  CHECK(others == 0);
}

TEST_CASE("Powers of two are within 1.5 ulp of a long double's, and exact where they are whole") {
  double worst = 0;
  for (int i = -300'000; i <= 300'000; ++i) {
    const double x = i / 10'000.0;
    worst = std::max(worst, ulps(power_of_two(x), std::exp2(static_cast<long double>(x))));
  }
  INFO(worst);
  CHECK(worst < 1.5);
  for (int i = -900; i <= 900; ++i) CHECK(power_of_two(i) == std::ldexp(1.0, i));
}

TEST_CASE("Logarithms are within 1.5 ulp of a long double's, near 1 too") {
  double worst = 0;
  const auto compare = [&](double x) {
    if (x == 1) return;
    worst = std::max(worst, ulps(logarithm(x), std::log(static_cast<long double>(x))));
  };
  for (int i = 1; i <= 300'000; ++i) compare(i / 100'000.0);
  for (int i = 1; i <= 1000; ++i) compare(1 - i * 0x1p-33);
  for (int i = -1000; i <= 1000; ++i) compare(std::ldexp(1.3, i));
  INFO(worst);
  CHECK(worst < 1.5);
  CHECK(logarithm(1) == 0);
}

TEST_CASE("What lies outside an elementary function's range is a defect") {
  CHECK_THROWS_AS(sine_cosine(-0.1), Error);
  CHECK_THROWS_AS(sine_cosine(std::nan("")), Error);
  CHECK_THROWS_AS(power_of_two(1001), Error);
  CHECK_THROWS_AS(logarithm(0), Error);
}

}  // namespace
}  // namespace dtrain::base::elementary_test
