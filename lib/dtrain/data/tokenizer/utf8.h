// Checks and cuts UTF-8.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace dtrain::data {

/// Where the first byte stands that is no part of a well-formed character; nothing where all are.
///
/// Source: The Unicode Standard, table 3-7.
[[nodiscard]] std::optional<std::size_t> invalid_utf8_at(std::string_view text);

/// The longest beginning of well-formed text that ends with a whole character. Of other text it
/// leaves out at most 3 bytes.
[[nodiscard]] std::size_t whole_characters(std::string_view text);

/// The characters at the ends of a text; 0: none that is well-formed.
[[nodiscard]] char32_t first_character(std::string_view text);
[[nodiscard]] char32_t last_character(std::string_view text);

}  // namespace dtrain::data
