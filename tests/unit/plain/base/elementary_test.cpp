#include "dtrain/base/elementary.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <set>

#include "dtrain/base/error.h"
#include "dtrain/base/philox.h"

namespace dtrain::base::elementary_test {
namespace {

using dtrain::base::philox;
using dtrain::base::philox_key;
using dtrain::base::RandomPurpose;

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

TEST_CASE("Arguments outside an elementary function's range are defects") {
  CHECK_THROWS_AS(sine_cosine(-0.1), Error);
  CHECK_THROWS_AS(sine_cosine(std::nan("")), Error);
  CHECK_THROWS_AS(power_of_two(1001), Error);
  CHECK_THROWS_AS(logarithm(0), Error);
}

// The known-answer vectors of philox4x32-10 published with Random123 (kat_vectors).
TEST_CASE("Philox gives the published known answers") {
  using Words = std::array<std::uint32_t, 4>;
  CHECK(philox({0, 0, 0, 0}, {0, 0}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}) ==
        Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("Streams of different purposes and seeds have different keys") {
  std::set<dtrain::base::PhiloxKey> keys;
  for (const std::uint64_t seed : {0ULL, 1ULL, 1ULL << 32, ~0ULL}) {
    for (const RandomPurpose purpose : {RandomPurpose::initialisation, RandomPurpose::dropout,
                                        RandomPurpose::shuffle, RandomPurpose::sampling}) {
      keys.insert(philox_key(seed, purpose));
    }
  }
  CHECK(keys.size() == 16);
}

}  // namespace
}  // namespace dtrain::base::elementary_test
