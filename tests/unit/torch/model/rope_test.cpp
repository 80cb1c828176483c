#include "dtrain/model/bdh/internal/rope.h"

#include <ATen/Parallel.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <numbers>
#include <vector>

#include "dtrain/base/error.h"
#include "unit/torch/model/bdh_fixture.h"

namespace dtrain::model::bdh::rope_test {
namespace {

using testing::largest_error;

TEST_CASE("Frequencies fall from 1/2pi by a factor of 2^16 over the neurons, equal within a pair") {
  const std::int64_t neurons = GENERATE(2, 6, 70, 512);
  const at::Tensor found = rope_frequencies(neurons);
  REQUIRE(found.scalar_type() == at::kFloat);
  REQUIRE(found.numel() == neurons);
  for (std::int64_t i = 0; i < neurons; ++i) {
    const double exponent =
        -2.0 * std::floor(static_cast<double>(i) / 2) / static_cast<double>(neurons);
    const double expected = std::pow(65536.0, exponent) / (2 * std::numbers::pi);
    // The exponent's rounding error is amplified up to ln(65536) times; then the power, 2 pi and two
    // quotients are rounded.
    CHECK(found[i].item<double>() ==
          Approx(expected).epsilon(testing::rounding_bound(at::kFloat, std::log(65536.0) + 4)));
  }
}

// The C library's long double functions are the oracle; correctly rounded values are equal on
// every CPU.
TEST_CASE("Frequencies and table are correctly rounded at each step of the reference") {
  constexpr auto kTurn = static_cast<float>(2 * std::numbers::pi);
  const std::int64_t neurons = GENERATE(2, 70, 512, 8192);
  const std::int64_t begin = GENERATE(0, 1000, 65500);
  const at::Tensor frequencies = rope_frequencies(neurons);
  const at::Tensor table = rope_rotations(begin, begin + 9, {neurons}, at::kFloat);
  const auto* found = table.const_data_ptr<float>();
  std::int64_t others = 0;
  for (std::int64_t t = begin; t < begin + 9; ++t) {
    for (std::int64_t k = 0; k < neurons / 2; ++k, found += 2) {
      const float exponent = static_cast<float>(2 * k) / static_cast<float>(neurons);
      const auto power = static_cast<float>(std::pow(65536.0L, exponent));
      const float frequency = 1.0F / power / kTurn;
      others += frequencies.const_data_ptr<float>()[2 * k + 1] != frequency;
      const float turns = static_cast<float>(t) * frequency;
      const long double angle = (turns - std::floor(turns)) * kTurn;
      others += found[0] != static_cast<float>(std::cos(angle));
      others += found[1] != static_cast<float>(std::sin(angle));
    }
  }
  CHECK(others == 0);
}

TEST_CASE("The table's bits do not depend on threads") {
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor alone = rope_rotations(0, 300, {64}, at::kFloat);
  for (const int count : {2, 4}) {
    at::set_num_threads(count);
    CHECK(at::equal(rope_rotations(0, 300, {64}, at::kFloat), alone));
  }
  at::set_num_threads(threads);
}

/// Rotates each pair of v (T, N) at positions begin, begin + 1, ... by the equations.
at::Tensor rotate_by_hand(const at::Tensor& v, std::int64_t begin) {
  const at::Tensor frequencies = rope_frequencies(v.size(1));
  at::Tensor out = at::empty_like(v);
  for (std::int64_t t = 0; t < v.size(0); ++t) {
    for (std::int64_t k = 0; k < v.size(1) / 2; ++k) {
      // Only the product must be float32.
      const float turns = static_cast<float>(begin + t) * frequencies[2 * k].item<float>();
      const double angle = 2 * std::numbers::pi * (turns - std::floor(turns));
      const auto a = v[t][2 * k].item<double>();
      const auto b = v[t][2 * k + 1].item<double>();
      out[t][2 * k] = a * std::cos(angle) - b * std::sin(angle);
      out[t][2 * k + 1] = b * std::cos(angle) + a * std::sin(angle);
    }
  }
  return out;
}

TEST_CASE("Interleaved pairs are rotated by position times frequency") {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(std::uint64_t{5});
  const std::int64_t begin = GENERATE(0, 1, 65500);
  const at::Tensor v = at::randn({9, 14}, generator, at::kDouble);
  // Cosines and sines are float32 even for float64, as in the reference.
  const at::Tensor found = rope_rotate(v, rope_rotations(begin, begin + 9, {14}, at::kDouble));
  // An angle below 2 pi is off by the rounding of 2 pi and of the product, its cosine and sine by as
  // much and a rounding more; two of them, times numbers of the pair, are added.
  const double bound =
      std::numbers::sqrt2 * testing::rounding_bound(at::kFloat, 2 * 2 * std::numbers::pi + 1);
  CHECK(largest_error(found, rotate_by_hand(v, begin)) <= bound);
  const at::Tensor narrow = v.to(at::kFloat);
  CHECK(largest_error(rope_rotate(narrow, rope_rotations(begin, begin + 9, {14}, at::kFloat)),
                      rotate_by_hand(v, begin)) <=
        bound + testing::rounding_bound(at::kFloat, 3));  // v, the products, the sum
}

TEST_CASE(
    "16-bit dtypes are rotated in float32 and rounded once; the gradient is the inverse rotation") {
  const at::ScalarType dtype = GENERATE(at::kBFloat16, at::kHalf);
  const double rounding = testing::unit_roundoff(dtype);
  auto generator = at::make_generator<at::CPUGeneratorImpl>(std::uint64_t{6});
  const at::Tensor v = at::randn({2, 9, 14}, generator).to(dtype).requires_grad_();
  const at::Tensor table = rope_rotations(0, 9, {14}, at::kFloat);
  const at::Tensor found = rope_rotate(v, table);
  CHECK(found.scalar_type() == dtype);
  for (std::int64_t row = 0; row < 2; ++row) {
    const at::Tensor expected = rotate_by_hand(v.detach()[row].to(at::kDouble), 0);
    const double before = testing::rounding_bound(at::kFloat, 2 * (4 * std::numbers::pi + 4)) *
                          v.detach().abs().max().item<double>();
    CHECK(at::allclose(found[row].to(at::kDouble), expected, rounding, before));
  }
  // The gradient of a rotation is its inverse: applied to the result, it gives v again.
  const at::Tensor gradient = torch::autograd::grad({found}, {v}, {found.detach()})[0];
  // Both values of a pair and their rotation are rounded.
  CHECK(largest_error(gradient, v.detach()) <= (std::numbers::sqrt2 + 1) * rounding * 1.01);
  CHECK(gradient.scalar_type() == dtype);
}

TEST_CASE("The table may have another dtype than v") {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(std::uint64_t{7});
  const at::Tensor v = at::randn({9, 14}, generator, at::kDouble);
  const at::Tensor float_table = rope_rotations(0, 9, {14}, at::kFloat);
  CHECK(at::equal(rope_rotate(v, float_table), rope_rotate(v, float_table.to(at::kDouble))));
  const at::Tensor low = v.to(at::kBFloat16);
  const at::Tensor low_table = rope_rotations(0, 9, {14}, at::kBFloat16);
  CHECK(at::equal(rope_rotate(low, low_table), rope_rotate(low, low_table.to(at::kFloat))));
}

TEST_CASE("A 16-bit table stored in float32 is created once") {
  RopeTables tables(HeadSlice{14});
  const at::Tensor table = tables.table(9, at::kBFloat16, at::kFloat);
  CHECK(table.scalar_type() == at::kFloat);
  CHECK(at::equal(table, rope_rotations(0, 9, {14}, at::kBFloat16).to(at::kFloat)));
  CHECK(tables.table(9, at::kBFloat16, at::kFloat).is_same(table));
}

TEST_CASE("The float64 table contains the float32 cosines and sines") {
  const at::Tensor wide = rope_rotations(0, 300, {12}, at::kDouble);
  const at::Tensor narrow = rope_rotations(0, 300, {12}, at::kFloat);
  CHECK(at::equal(wide, narrow.to(at::kDouble)));
}

TEST_CASE("A table of some positions equals that part of the full table") {
  const at::Tensor all = rope_rotations(0, 200, {32}, at::kFloat);
  CHECK(at::equal(rope_rotations(128, 192, {32}, at::kFloat), all.slice(0, 128, 192)));
}

TEST_CASE("A table of a head slice equals that part of the full table") {
  const std::int64_t whole = GENERATE(4, 14, 70, 512);
  const at::ScalarType dtype = GENERATE(at::kFloat, at::kDouble, at::kBFloat16);
  const at::Tensor all = rope_rotations(3, 90, {whole}, dtype);
  for (std::int64_t first = 0; first < whole; first += whole / 4 * 2) {
    const std::int64_t count = std::min(whole / 4 * 2, whole - first);
    CHECK(at::equal(rope_rotations(3, 90, {.whole = whole, .first = first, .count = count}, dtype),
                    all.narrow(1, first / 2, count / 2)));
  }
}

TEST_CASE("A head slice that splits a pair is rejected") {
  CHECK_THROWS_AS(rope_rotations(0, 9, {.whole = 12, .first = 3, .count = 6}, at::kFloat),
                  base::Error);
  CHECK_THROWS_AS(rope_rotations(0, 9, {.whole = 12, .first = 0, .count = 3}, at::kFloat),
                  base::Error);
}

TEST_CASE("Tables are recreated for another length or dtype") {
  RopeTables tables({8});
  CHECK(tables.table(5, at::kFloat, at::kFloat).sizes() == at::IntArrayRef({5, 4, 2}));
  CHECK(tables.table(7, at::kFloat, at::kFloat).sizes() == at::IntArrayRef({7, 4, 2}));
  CHECK(tables.table(7, at::kDouble, at::kDouble).scalar_type() == at::kDouble);
}

}  // namespace
}  // namespace dtrain::model::bdh::rope_test
