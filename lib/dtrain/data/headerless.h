// What the numbers of a file without a header are, as far as their bytes tell.
#pragma once

#include <cstddef>
#include <span>

namespace dtrain::data {

enum class Headerless {
  uint16,   ///< 16-bit tokens, little-endian
  swapped,  ///< 16-bit tokens, big-endian
  wider,    ///< numbers of 32 or 64 bits
  unknown,  ///< other numbers, or too few to tell
};

/// Reads the type of tokens from how bytes repeat at each place of a number. bytes: a file's first.
///
/// Tokens below 2^24 in 32 or 64 bits have a place whose bytes are all 0 (or 255, of negative
/// numbers), where 16-bit tokens have one at every second byte or nowhere. And in tokens of a text
/// the high byte repeats more than the low one, for there are fewer of them and frequent tokens lie
/// together; in 8-bit tokens, both repeat alike. The difference must be five standard deviations.
[[nodiscard]] Headerless examine_headerless(std::span<const std::byte> bytes);

}  // namespace dtrain::data
