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

/// The longest beginning of well-formed text that ends with a whole character.
[[nodiscard]] std::size_t whole_characters(std::string_view text);

}  // namespace dtrain::data
