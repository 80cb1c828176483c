// The alphabet in which byte-level tokenizers write tokens: one printable character per byte.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dtrain::data {

/// The character that stands for a byte, as UTF-8: "A" for 0x41, U+0120 for a space.
///
/// Source: GPT-2's encoder.py, bytes_to_unicode.
[[nodiscard]] std::string letter_of(std::uint8_t byte);

/// Returns the bytes that a token stands for; empty if a character is not a letter of the alphabet.
[[nodiscard]] std::optional<std::string> bytes_of_letters(std::string_view token);

}  // namespace dtrain::data
