// Guesses the number type of a headerless token file from byte statistics.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace dtrain::data {

/// GPT-2's vocabulary, rounded up as trainers do.
inline constexpr std::uint16_t kGpt2LargestVocab = 50304;

/// The detected type of the numbers.
enum class Headerless {
  uint16,   ///< 16-bit tokens, little-endian
  swapped,  ///< 16-bit tokens, big-endian
  wider,    ///< numbers of 32 or 64 bits
  floats,   ///< floating-point numbers, such as weights
  unknown,  ///< other numbers, or too few bytes
};

/// Detects the type of tokens from how often bytes repeat at each byte position within a number.
/// bytes: the beginning of a file.
///
/// Tokens below 2^24 in 32 or 64 bits have a byte position that is always 0 (or 255, for negative
/// numbers); 16-bit tokens have that at every second byte or nowhere. In 16-bit tokens of a text
/// the high byte repeats more often than the low one, because it has fewer values and frequent
/// tokens lie close together; in 8-bit tokens both repeat equally often. The difference must be
/// five standard deviations. High bytes of floating-point numbers repeat too, but with about equal
/// frequency for either sign, whereas the highest bit of tokens is rarely set.
[[nodiscard]] Headerless examine_headerless(std::span<const std::byte> bytes);

}  // namespace dtrain::data
