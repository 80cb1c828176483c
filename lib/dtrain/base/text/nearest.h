// Suggests names for mistyped ones.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace dtrain::base {

/// Returns the most similar candidate; empty if none is similar enough. Compares names word by word
/// ("--log-every" has two), ignoring case, separators and word order. Each word may differ by edits
/// (insertions, deletions, substitutions, transpositions) of a third of its letters, or be a prefix
/// of the other; names with different numbers of words may differ by edits of a fifth of all
/// letters. One edit is always allowed. If no candidate is similar, returns the one that begins
/// with `word`, if there is only one.
[[nodiscard]] std::string_view nearest(std::string_view word,
                                       std::span<const std::string_view> candidates);

/// ": did you mean NAME?"; empty for an empty name.
[[nodiscard]] std::string did_you_mean(std::string_view name);

}  // namespace dtrain::base
