#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "dtrain/base/error.h"
#include "dtrain/checkpoint/format/safetensors.h"

namespace dtrain::checkpoint::format {
namespace {

template <typename T>
T load(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

template <typename T>
double number(const std::byte* bytes) {
  return static_cast<double>(load<T>(bytes));
}

// Source: IEEE 754-2019, binary16: 1 sign bit, 5 of the exponent (biased by 15), 10 of the
// fraction.
double from_half(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1f;
  const int fraction = bits & 0x3ff;
  double magnitude = std::ldexp(fraction, -24);  // subnormal, or zero
  if (exponent == 0x1f) {
    magnitude = fraction == 0 ? std::numeric_limits<double>::infinity()
                              : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent != 0) {
    magnitude = std::ldexp(fraction + 0x400, exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

// The upper half of a float.
double from_bfloat16(std::uint16_t bits) {
  const std::uint32_t word = std::uint32_t{bits} << 16;
  float value = 0;
  std::memcpy(&value, &word, sizeof(value));
  return value;
}

}  // namespace

double value_at(Dtype dtype, const std::byte* bytes) {
  switch (dtype) {
    case Dtype::boolean:
    case Dtype::u8:
      return number<std::uint8_t>(bytes);
    case Dtype::i8:
      return number<std::int8_t>(bytes);
    case Dtype::u16:
      return number<std::uint16_t>(bytes);
    case Dtype::i16:
      return number<std::int16_t>(bytes);
    case Dtype::f16:
      return from_half(load<std::uint16_t>(bytes));
    case Dtype::bf16:
      return from_bfloat16(load<std::uint16_t>(bytes));
    case Dtype::u32:
      return number<std::uint32_t>(bytes);
    case Dtype::i32:
      return number<std::int32_t>(bytes);
    case Dtype::f32:
      return number<float>(bytes);
    case Dtype::u64:
      return number<std::uint64_t>(bytes);
    case Dtype::i64:
      return number<std::int64_t>(bytes);
    case Dtype::f64:
      return number<double>(bytes);
  }
  base::fail(base::ErrorKind::internal, "a dtype without values");
}

}  // namespace dtrain::checkpoint::format
