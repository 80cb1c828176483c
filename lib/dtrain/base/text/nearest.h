// Suggests names for mistyped ones.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace dtrain::base {

/// The most similar candidate; empty if none is similar enough. Compares names word by word
/// ("--log-every" has two), ignoring case, separators and word order: each word may have a third of
/// its letters wrong (inserted, deleted, changed, transposed) or be a prefix of the other. If none
/// is similar, returns the candidate that begins with `word`, if there is only one.
[[nodiscard]] std::string_view nearest(std::string_view word,
                                       std::span<const std::string_view> candidates);

/// ": did you mean NAME?"; empty for an empty name.
[[nodiscard]] std::string did_you_mean(std::string_view name);

}  // namespace dtrain::base
