// Character properties of the versions of Unicode that the package tokenizers (0.23) uses: 16 in
// patterns, 17 for digits. PCRE2 10.42 knows Unicode 14.
#pragma once

#include <span>
#include <string_view>

namespace dtrain::data {

/// Characters of one general category.
struct CategoryRange {
  char32_t first;
  char32_t last;
  std::string_view category;  ///< "Lo", "Nd", ...
};

/// The characters that are unassigned in Unicode 14 and have a category in Unicode 16, and the one
/// whose category changed; sorted.
[[nodiscard]] std::span<const CategoryRange> later_characters();

/// Returns whether the character's category is Nd, Nl or No.
[[nodiscard]] bool is_numeric(char32_t character);

/// Returns whether the character has the property White_Space.
[[nodiscard]] bool is_white_space(char32_t character);

}  // namespace dtrain::data
