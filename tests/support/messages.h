// Matches messages by the settings, files, ranks and numbers that they name, not by their wording.
// Approved full texts are in tests/transcripts.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cctype>
#include <string>
#include <string_view>
#include <vector>

namespace dtrain::testing {

/// Returns whether `text` contains `name` as a whole word: 1 is not in 12 or 0.1, --lr not in
/// --lr-min.
inline bool holds(std::string_view text, std::string_view name) {
  const auto is_part = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-';
  };
  const auto is_digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
  for (std::size_t at = text.find(name); at != text.npos; at = text.find(name, at + 1)) {
    const std::string_view before = text.substr(0, at);
    const std::string_view after = text.substr(at + name.size());
    const bool is_begun = !before.empty() && is_part(before.back());
    const bool goes_on = !after.empty() && is_part(after.front());
    const bool is_fraction =
        before.size() > 1 && before.back() == '.' && is_digit(before[before.size() - 2]);
    const bool has_fraction = after.size() > 1 && after.front() == '.' && is_digit(after[1]);
    if (!is_begun && !goes_on && !is_fraction && !has_fraction) return true;
  }
  return false;
}

/// Matches a message that contains every name.
class Names : public Catch::MatcherBase<std::string> {
 public:
  template <class... Name>
  explicit Names(const Name&... names) : names_{fmt::format("{}", names)...} {}

  [[nodiscard]] bool match(const std::string& message) const override {
    return std::ranges::all_of(names_,
                               [&](const std::string& name) { return holds(message, name); });
  }

  [[nodiscard]] std::string describe() const override {
    return fmt::format("names {}", fmt::join(names_, ", "));
  }

 private:
  std::vector<std::string> names_;
};

}  // namespace dtrain::testing
