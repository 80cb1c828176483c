// What the numbers of a file without a header are, as far as their bytes tell.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace dtrain::data {

/// GPT-2's vocabulary as trainers round it up.
inline constexpr std::uint16_t kGpt2LargestVocab = 50304;

enum class Headerless {
  uint16,   ///< 16-bit tokens, little-endian
  swapped,  ///< 16-bit tokens, big-endian
  wider,    ///< numbers of 32 or 64 bits
  floats,   ///< floating-point numbers, as of weights
  unknown,  ///< other numbers, or too few to tell
};

/// Reads the type of tokens from how bytes repeat at each place of a number. bytes: a file's first.
///
/// Tokens below 2^24 in 32 or 64 bits have a place whose bytes are all 0 (or 255, of negative
/// numbers), where 16-bit tokens have one at every second byte or nowhere. And in tokens of a text
/// the high byte repeats more than the low one, for there are fewer of them and frequent tokens lie
/// together; in 8-bit tokens, both repeat alike. The difference must be five standard deviations.
/// High bytes of floating-point numbers repeat too, but each is about as frequent as that of the
/// opposite sign, while the highest bit of tokens is seldom set.
[[nodiscard]] Headerless examine_headerless(std::span<const std::byte> bytes);

}  // namespace dtrain::data
