// Makes foreign text safe to print.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace dtrain::base {

/// `text` with each control character replaced by '?', C1 controls included, so that a terminal
/// does not obey it; cut after `most_bytes`.
[[nodiscard]] std::string printable(std::string_view text, std::size_t most_bytes = 4096);

}  // namespace dtrain::base
