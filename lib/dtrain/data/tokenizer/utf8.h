// Validates UTF-8 and finds its character boundaries.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace dtrain::data {

/// Returns the offset of the first byte that is not part of a well-formed character, if any.
///
/// Source: The Unicode Standard, table 3-7.
[[nodiscard]] std::optional<std::size_t> invalid_utf8_at(std::string_view text);

/// Returns the length of the longest prefix that ends with a complete character. In malformed text
/// the prefix lacks at most 3 bytes.
[[nodiscard]] std::size_t whole_characters(std::string_view text);

/// Return the first or last character of a text; 0 if that character is not well-formed.
[[nodiscard]] char32_t first_character(std::string_view text);
[[nodiscard]] char32_t last_character(std::string_view text);

/// Replaces bytes that are not UTF-8 in a text that arrives in pieces: each longest beginning of a
/// character, or single byte, becomes U+FFFD.
///
/// Source: The Unicode Standard, section 3.9, "Substitution of Maximal Subparts".
class Utf8Repair {
 public:
  /// Returns the text that is complete, without the beginning of a character at its end.
  [[nodiscard]] std::string add(std::string_view bytes);
  /// Returns U+FFFD if the text ends within a character, otherwise nothing.
  [[nodiscard]] std::string finish();

 private:
  std::string pending_;  // the beginning of a character
};

}  // namespace dtrain::data
