// Suggestions for mistyped names.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace dtrain::base {

/// The candidate that is fewest edits (insertion, deletion, change, swap of neighbours) away from
/// `word`; empty when none is close enough to be what was meant.
[[nodiscard]] std::string_view nearest(std::string_view word,
                                       std::span<const std::string_view> candidates);

/// ": did you mean NAME?", or nothing.
[[nodiscard]] std::string did_you_mean(std::string_view name);

}  // namespace dtrain::base
