// Suggests the correct name for a mistyped one.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace dtrain::base {

/// Returns the candidate most similar to `word`. If none is similar, returns the candidate that
/// begins with `word`; empty if there is none or more than one.
///
/// Case and separators are ignored. Names with equally many words ("--log-every" has two) are
/// similar if their words are equal in any order, or if each word is similar to the word at the
/// same place: one is a prefix of the other, or they differ by edits (insertions, deletions,
/// substitutions, transpositions) in at most a third of the letters. Other names are similar if
/// they differ by edits in at most a fifth of the letters. One edit is always allowed. A prefix
/// counts only from three letters.
[[nodiscard]] std::string_view nearest(std::string_view word,
                                       std::span<const std::string_view> candidates);

/// ": did you mean NAME?"; empty for an empty name.
[[nodiscard]] std::string did_you_mean(std::string_view name);

}  // namespace dtrain::base
