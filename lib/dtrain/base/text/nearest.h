// Suggests names for mistyped ones.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace dtrain::base {

/// The candidate that `word` probably means; empty when none is close enough. Compares names word
/// by word ("--log-every" has two) and ignores case and separators: each word may have a third of
/// its letters wrong (inserted, deleted, changed, swapped with a neighbour) or be a shorter form of
/// the other; the words may stand in another order. Else the only candidate that begins with
/// `word`.
[[nodiscard]] std::string_view nearest(std::string_view word,
                                       std::span<const std::string_view> candidates);

/// ": did you mean NAME?", or nothing.
[[nodiscard]] std::string did_you_mean(std::string_view name);

}  // namespace dtrain::base
