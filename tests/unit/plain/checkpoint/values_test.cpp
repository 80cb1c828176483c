#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "dtrain/checkpoint/format/safetensors.h"

namespace dtrain::checkpoint::format::values_test {
namespace {

template <typename T>
double value_of(Dtype dtype, T value) {
  // One byte off, so that nothing here is aligned.
  std::vector<std::byte> bytes(sizeof(T) + 1);
  std::memcpy(bytes.data() + 1, &value, sizeof(T));
  return value_at(dtype, bytes.data() + 1);
}

double half(std::uint16_t bits) { return value_of(Dtype::f16, bits); }
double brain(std::uint16_t bits) { return value_of(Dtype::bf16, bits); }

TEST_CASE("Whole numbers and floats keep their values") {
  CHECK(value_of(Dtype::boolean, std::uint8_t{1}) == 1);
  CHECK(value_of(Dtype::u8, std::uint8_t{255}) == 255);
  CHECK(value_of(Dtype::i8, std::int8_t{-128}) == -128);
  CHECK(value_of(Dtype::u16, std::uint16_t{65535}) == 65535);
  CHECK(value_of(Dtype::i16, std::int16_t{-2}) == -2);
  CHECK(value_of(Dtype::u32, std::uint32_t{4294967295}) == 4294967295.0);
  CHECK(value_of(Dtype::i32, std::int32_t{-3}) == -3);
  CHECK(value_of(Dtype::u64, std::uint64_t{1} << 63) == 9223372036854775808.0);
  CHECK(value_of(Dtype::i64, std::int64_t{-4}) == -4);
  CHECK(value_of(Dtype::f32, 0.1F) == static_cast<double>(0.1F));
  CHECK(value_of(Dtype::f64, -0.1) == -0.1);
}

// The bit patterns are those of the tables in IEEE 754's and bfloat16's descriptions.
TEST_CASE("Sixteen-bit floats have the values that their bits stand for") {
  CHECK(half(0x3c00) == 1);
  CHECK(half(0xc000) == -2);
  CHECK(half(0x7bff) == 65504);
  CHECK(half(0x0400) == std::ldexp(1.0, -14));
  CHECK(half(0x0001) == std::ldexp(1.0, -24));
  CHECK(half(0x83ff) == -std::ldexp(1023.0, -24));
  CHECK(half(0x3555) == 0.333251953125);
  CHECK(std::signbit(half(0x8000)));
  CHECK(half(0xfc00) == -std::numeric_limits<double>::infinity());
  CHECK(std::isnan(half(0x7e00)));
  CHECK(brain(0x3f80) == 1);
  CHECK(brain(0x4049) == 3.140625);
  CHECK(brain(0xff80) == -std::numeric_limits<double>::infinity());
  CHECK(brain(0x0001) == std::ldexp(1.0, -133));
  CHECK(std::isnan(brain(0x7fc0)));
}

}  // namespace
}  // namespace dtrain::checkpoint::format::values_test
