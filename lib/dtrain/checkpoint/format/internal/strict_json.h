// A parser for untrusted JSON.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

namespace dtrain::checkpoint::format {

/// Must throw. found: what is wrong, as in "the file has a header FOUND".
using Refuse = std::function<void(std::string_view found)>;

/// Returns whether the text fits in a message of one line: no control characters.
[[nodiscard]] bool is_printable(std::string_view text);

/// The number, if it is a whole one from 0 to 2^63 - 1.
[[nodiscard]] std::optional<std::int64_t> size_in(const nlohmann::json& value);

/// The JSON value of `text`, nested at most max_depth deep, without a name given twice in one
/// object or with control characters, without NUL bytes and without numbers out of range; else
/// calls refuse.
[[nodiscard]] nlohmann::json parse_strictly(std::string_view text, int max_depth,
                                            const Refuse& refuse);

}  // namespace dtrain::checkpoint::format
