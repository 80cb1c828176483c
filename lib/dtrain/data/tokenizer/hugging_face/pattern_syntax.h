// Converts the regular expressions of tokenizers from Oniguruma's syntax to PCRE2's.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace dtrain::data {

/// A construct without an equivalent; what() completes "the pattern has ...".
class UnsupportedPattern : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Converts a pattern. The result matches what Oniguruma 6.9.10 matches (Unicode 16), and whether
/// it matches never depends on the text before a match.
///
/// Throws: UnsupportedPattern for look-behind, anchors, back references, \w, and other constructs
///         that the two syntaxes read differently. Invalid patterns may pass: PCRE2 rejects them.
[[nodiscard]] std::string to_pcre2(std::string_view oniguruma);

/// Returns a pattern that matches exactly `text`.
[[nodiscard]] std::string to_pcre2_literal(std::string_view text);

}  // namespace dtrain::data
