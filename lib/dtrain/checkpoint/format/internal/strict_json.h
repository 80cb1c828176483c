// A parser for untrusted JSON.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

namespace dtrain::checkpoint::format {

/// Error callback; must throw. found: completes a message such as "the file has a header FOUND".
using Refuse = std::function<void(std::string_view found)>;

/// Returns whether the text has no control characters, so it fits in a one-line message.
[[nodiscard]] bool is_printable(std::string_view text);

/// Returns the value if it is an integer from 0 to 2^63 - 1.
[[nodiscard]] std::optional<std::int64_t> size_in(const nlohmann::json& value);

/// Parses JSON. Calls refuse for invalid JSON, nesting deeper than max_depth, duplicate names in an
/// object, control characters in names, NUL bytes and numbers out of range.
[[nodiscard]] nlohmann::json parse_strictly(std::string_view text, int max_depth,
                                            const Refuse& refuse);

}  // namespace dtrain::checkpoint::format
