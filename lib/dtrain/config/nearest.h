// Suggestions for mistyped names.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace dtrain::config {

/// The candidate that is fewest edits (insertion, deletion, change, swap of neighbours) away from
/// `word`; empty when none is close enough to be what was meant.
[[nodiscard]] std::string_view nearest(std::string_view word,
                                       std::span<const std::string_view> candidates);

/// ": did you mean NAME?", or nothing.
[[nodiscard]] std::string did_you_mean(std::string_view name);

/// The key of the setting that `key` may have meant: the nearest whole key, else the one whose last
/// part is nearest ("width" means "model.width"); empty when none is close.
[[nodiscard]] std::string_view nearest_key(std::string_view key);

}  // namespace dtrain::config
