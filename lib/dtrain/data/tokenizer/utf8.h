// Validates UTF-8 and finds its character boundaries.
#pragma once

#include <cstddef>
#include <optional>
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

}  // namespace dtrain::data
