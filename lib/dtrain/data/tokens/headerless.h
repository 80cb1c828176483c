// Guesses the number type of a headerless token file from byte statistics.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace dtrain::data {

/// GPT-2's vocabulary, padded to a multiple of 128 as trainers do.
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
/// 32- and 64-bit tokens below 2^24 have a byte position that is always 0 (or 255, for negative
/// numbers). In 16-bit tokens either every second byte is constant or none is. In 16-bit tokens of
/// a text the high byte repeats more often than the low byte, because it has fewer values and
/// frequent tokens lie close together; in 8-bit tokens both repeat equally often. The difference
/// must be at least five standard deviations. The high bytes of floating-point numbers repeat too,
/// but their sign bit is set about half of the time, whereas the highest bit of tokens is rarely
/// set.
[[nodiscard]] Headerless examine_headerless(std::span<const std::byte> bytes);

}  // namespace dtrain::data
